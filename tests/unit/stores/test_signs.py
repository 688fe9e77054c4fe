"""Signs of life: one write a minute at most, off the path of messages, and nothing depends on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from outbox import App, Context, Engine, Worker
from outbox.deliveries import EntityCounts
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import FormatTooNew, OutcomeUnknown, Refused
from outbox.ops.admins.store import StoreAdmin
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.values.status import ReadSigns
from outbox.ports import Create, DocumentKey, Lost, StateStore, StorePorts, Won, Write
from outbox.runtime import shell as signs
from outbox.runtime.counts import Counts
from outbox.runtime.shell import LARGE_STATE_BYTES, SIGN_EVERY_S, SIGN_TTL_S, SignsOfLife, signs_in
from tests.unit.waiting import until

MINUTE_MS = 60_000


@dataclass
class Ask:
    key: str
    size: int = 0


@dataclass
class Held:
    text: str = ""


def asked() -> App:
    app = App("asked")

    @app.handler("asks", key="key")
    def ask(message: Ask, held: Held, ctx: Context) -> None:
        if message.key == "newer":
            raise FormatTooNew("schema 2 is newer; deploy the newer build")
        held.text = "x" * message.size

    return app


class Watched:
    """A store that counts writes of signs, and answers as it is told."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.asked = Counter[str]()
        self.error: Exception | None = None
        self.capabilities, self.read, self.scan, self.unfinished = (
            store.capabilities, store.read, store.scan, store.unfinished,
        )  # fmt: skip

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        self.asked.update(type(each).__name__ for each in operations if each.tag.what == "sign")
        answer = await self._store.write(operations)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return answer


class At:
    """The signs of one process at a time that a test sets."""

    def __init__(self, engine: Engine) -> None:
        self.store: Any = Watched(engine.store())
        self.now_ms = 1_000_000_000_000
        self.counts = Counts()
        self.large = {"Held:a": LARGE_STATE_BYTES + 1}
        self.signs = SignsOfLife(
            "asked",
            ["asks"],
            self.store,
            now_ms=lambda: self.now_ms,
            counts=self.counts,
            large=lambda above_bytes, count_max: self.large,
        )

    async def after(self, ms: int) -> list[signs.Sign]:
        self.now_ms += ms
        await self.signs.give()
        return await signs_in(self.store)


async def test_a_process_gives_at_most_one_sign_a_minute_by_one_request(engine: Engine) -> None:
    at = At(engine)
    started_ms = at.now_ms
    at.counts.of("asks").newer_ms, at.counts.of("others").applied = 17, 1
    for _ in range(60 * 10):
        found = await at.after(1_000)
    assert at.store.asked == {"Create": 1, "Replace": 9}
    [sign] = found
    assert (sign.app, sign.queues, sign.large) == ("asked", ("asks",), at.large)
    assert sign.newer_ms == {"asks": 17} and sign.started_ms == started_ms
    assert at.now_ms - sign.at_ms <= MINUTE_MS


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), Refused("throttled"), RuntimeError("an SDK's")])
async def test_a_sign_that_fails_is_left_out_and_the_next_is_a_document_of_its_own(
    engine: Engine, error: Exception
) -> None:
    at = At(engine)
    await at.after(MINUTE_MS)
    at.store.error = error
    await at.after(MINUTE_MS)
    [sign] = await at.after(MINUTE_MS)
    assert sign.at_ms == at.now_ms
    assert at.store.asked == {"Create": 2, "Replace": 1}


async def test_a_process_that_was_paused_for_longer_than_its_sign_lives_goes_on_with_a_new_one(engine: Engine) -> None:
    at = At(engine)
    await at.after(MINUTE_MS)
    for partition in [each for each in engine.state.documents.spaces if each.startswith("p/workers")]:
        engine.state.documents.spaces[partition].clear()  # it has expired
    assert await at.after(MINUTE_MS) == []
    assert len(await at.after(MINUTE_MS)) == 1


async def test_a_sign_expires_and_one_that_cannot_be_read_is_passed_over(engine: Engine) -> None:
    at = At(engine)
    await at.after(MINUTE_MS)
    for _ in range(2):  # made, and written again
        [document] = engine.state.documents.spaces["p/workers"].values()
        assert 0 < document.expires_ms - engine.now_ms() <= SIGN_TTL_S * 1_000
        await at.after(MINUTE_MS)
    space = engine.state.documents.spaces["p/workers"]
    space["alive:foreign"] = type(document)(b"[", 1)
    assert len(await signs_in(at.store)) == 1


async def test_of_several_signs_of_a_process_the_newest_counts_and_so_many_are_read(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = engine.store()
    for number, (process, at_ms) in enumerate([("a", 2), ("a", 3), ("a", 1), ("b", 5), ("c", 6)]):
        body = msgspec.json.encode(signs.Sign("asked", process, 1, at_ms, ("asks",)))
        await store.write([Create(DocumentKey(signs.PLACE, f"alive:{number}"), body)])
    assert [(each.process, each.at_ms) for each in await signs_in(store)] == [("a", 3), ("b", 5), ("c", 6)]
    monkeypatch.setattr(signs, "SIGNS_MAX", 4)
    assert [each.process for each in await signs_in(store)] == ["a", "b"]


async def test_a_worker_says_what_it_takes_puts_back_and_holds(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "SIGN_AFTER_S", 0.3)
    monkeypatch.setattr(signs, "SIGN_EVERY_S", SIGN_EVERY_S)
    backend = NarrowEngine(engine, "partition")
    async with Worker(asked(), backend) as worker:
        worker._signs._last_ms = 0  # type: ignore[union-attr]  # over a store it has some
        await worker.send("asks", Ask("large", LARGE_STATE_BYTES + 10), id="m1")
        await worker.send("asks", Ask("newer"), id="m2")
        found = await until(lambda: signs_in(engine.store()))
    [sign] = found
    assert sign.queues == ("asks",) and sign.newer_ms.keys() == {"asks"}
    assert engine.now_ms() - sign.newer_ms["asks"] < MINUTE_MS
    assert list(sign.large) == ["Held:large"] and sign.large["Held:large"] > LARGE_STATE_BYTES


async def test_signs_of_several_processes_are_put_together(engine: Engine) -> None:
    async def counts() -> dict[str, EntityCounts]:
        return {"b": EntityCounts(1, 0, 0), "a": EntityCounts(2, 0, 0), "empty": EntityCounts(0, 9, 9)}

    async def waiting(path: str) -> int | None:
        assert path != "empty", "a look costs a request"
        return None if path == "a" else engine.now_ms() - 6_000

    async def nothing(*args: Any, **options: Any) -> Any: ...

    async with Worker(asked(), NarrowEngine(engine, "partition")):
        pass
    given = (
        ({"Held:a": 70_000, "Held:b": 80_000}, 150_000),
        ({"Held:a": 75_000}, 150_000),
        ({"Held:c": 90_000}, 250_000),
    )
    for number, (sizes, ago_ms) in enumerate(given):  # of the last one more than three minutes ago
        at = At(engine)
        at.now_ms, at.large = engine.now_ms() - ago_ms, sizes
        at.signs = SignsOfLife(
            "asked", ["ASKS"], at.store, now_ms=lambda at=at: at.now_ms, counts=at.counts,  # type: ignore[misc]
            large=lambda above_bytes, count_max, at=at: at.large,  # type: ignore[misc]
        )  # fmt: skip
        await at.after(MINUTE_MS + number)
    ports = NarrowEngine(engine, "partition").ports()
    assert isinstance(ports, StorePorts)
    site = StoreSite(ports, counts, nothing, nothing, waiting_since_ms=waiting)
    found = await StoreAdmin(site).ask(ReadSigns())
    assert [(each.id, each.size_bytes) for each in found.large] == [("Held:b", 80_000), ("Held:a", 75_000)]
    assert found.unattended == [] and len(found.workers) == 2, "a minute and a half ago they were alive"
    assert all(each.seen - each.started >= MINUTE_MS / 1_000 for each in found.workers)
    assert found.oldest.keys() == {"b"} and 5 <= found.oldest["b"] < 60


async def test_without_its_sign_a_queue_of_a_handler_is_unattended(engine: Engine) -> None:
    async def nothing(*args: Any, **options: Any) -> Any:
        return {}

    async with Worker(asked(), NarrowEngine(engine, "partition")):
        pass
    ports = NarrowEngine(engine, "partition").ports()
    assert isinstance(ports, StorePorts)
    admin = StoreAdmin(StoreSite(ports, nothing, nothing, nothing))
    assert (await admin.ask(ReadSigns())).unattended == ["asks"]
    at = At(engine)
    at.signs._last_ms = at.now_ms = engine.now_ms()
    await at.after(0)
    assert (await admin.ask(ReadSigns())).unattended == ["asks"], "not due yet"
    at.signs._last_ms = 0
    await at.after(0)
    found = await admin.ask(ReadSigns())
    assert found.unattended == [] and [each.app for each in found.workers] == ["asked"]
    assert [each.id for each in found.large] == ["Held:a"]
