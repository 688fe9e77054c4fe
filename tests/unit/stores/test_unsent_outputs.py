"""What a crash has left unsent counts as held: a handler gets no other name while it may be sent to its queue again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from outbox import App, Context, Worker, stored
from outbox.errors import NotRegistrable
from outbox.message import Message
from outbox.ports import Document, Output
from outbox.runtime.store_operations import may_be_sent_to
from outbox.stored import Inline, Record, Staged, StateItem, record_key
from tests.unit.messages import Count, Task
from tests.unit.stores.store_site import site, swept


@dataclass
class Other:
    n: int = 0


def chained(name: str) -> App:
    app = App("a")

    @app.handler("first", key="key")
    def first(task: Task, count: Count, ctx: Context) -> None:
        ctx.send("q", Task(task.key))

    @app.handler("q", key="key", name=name)
    def second(task: Task, other: Other) -> None:
        other.n += 1

    return app


class Unsent:
    """A store in which the record of one commit is pending."""

    def __init__(self, record: Record | StateItem | Staged) -> None:
        self.record = record

    async def unfinished(self) -> AsyncIterator[Document]:
        yield Document(record_key("s", b"i"), stored.encode(self.record), "1")


async def test_what_is_unsent_to_a_topic_may_reach_its_subscriptions_and_nothing_else() -> None:
    record = Record("tx", b"f", 1, pending=True, outputs=(Output("news", 0, Message(body=b"{}")),))
    store: Any = Unsent(record)
    assert await may_be_sent_to(["news/Subscriptions/all"], store)
    assert not await may_be_sent_to(["other/Subscriptions/all", "all"], store)


PUSHES = Record("tx", b"f", 1, pending=True, outputs=(Output("q", 0, Message(body=b"{}")),))
PLACES: dict[str, Record | StateItem | Staged] = {
    "a record": PUSHES,
    "a record whose outputs overflow": msgspec.structs.replace(PUSHES, outputs=(), spilled="overflow/tx/digest"),
    "a state": StateItem(msgspec.Raw(b"1"), pending=Inline(b"i", PUSHES)),
    "what is staged": Staged("tx", b"i", "Count:x", 0, PUSHES),
}


@pytest.mark.parametrize("place", PLACES)
async def test_what_is_unsent_is_found_wherever_it_lies(place: str) -> None:
    store: Any = Unsent(PLACES[place])
    assert await may_be_sent_to(["q"], store)
    assert await may_be_sent_to(["other"], store) == ("overflow" in place), "nobody looks into the blob"


@pytest.mark.parametrize(
    ("scope", "what", "staged"),
    [("partition", "mark", False), ("item", "processed", False), ("item", "dispatched", True)],
)
async def test_no_rename_while_a_commit_may_send_its_output_again(scope: str, what: str, staged: bool) -> None:
    async with site(scope, staged=staged) as at:
        at.store.refused = what  # the worker ends before it could note that its output has left
        async with Worker(chained("old"), at, drain_s=0.1) as worker:
            await worker.send("first", Task("x"), id="1")
            with suppress(TimeoutError):  # in item scope the message is not done before that
                await worker.wait_idle(timeout_s=0.5)
        with pytest.raises(NotRegistrable, match="committed and not sent yet"):
            await Worker(chained("new"), at).__aenter__()
        at.store.refused = ""
        at.clock.seconds += 61
        await swept(at, chained("old"))
        async with Worker(chained("old"), at) as worker:
            await worker.wait_idle()
            assert await worker.state(Other, "x") == Other(1)
        async with Worker(chained("new"), at):
            pass
