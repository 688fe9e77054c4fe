"""A claim check opens the body of its own message and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from outbox import App, Context
from outbox.testing import Harness
from tests.unit.messages import deliver


@dataclass
class Note:
    """A large message."""

    text: str


@dataclass
class Ask:
    """A message that is answered with a large one."""


async def test_a_claim_taken_from_another_message_is_not_read() -> None:
    app, seen = App("claims", claim_check_bytes=100), list[str]()
    app.queue("out")

    @app.handler("asks")
    def answer(ask: Ask, ctx: Context) -> None:
        ctx.send("out", Note("secret" * 50))

    @app.handler("notes")
    def read(note: Note) -> None:
        seen.append(note.text)

    async with Harness(app) as world:
        await deliver(world, "asks", Ask())
        taken = world.sent_records("out")[0].properties
        forged = {name: taken[name] for name in ("outbox-id", "outbox-type", "outbox-claim")}
        await world.send_raw("notes", b"", properties=forged | {"outbox-id": "thief"})
        await world.send_raw("notes", b"", properties=forged)  # who knows the identity has the message's own claim
        await world.wait_idle()
        (dead_letter,) = world.dead_letters("notes")
        assert (dead_letter.id, dead_letter.reason) == ("thief", "undecodable")
        assert "of this message" in dead_letter.description
        assert seen == ["secret" * 50]
