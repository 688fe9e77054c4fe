"""Blobs of large cells: each is one append's, goes with its cell, and does not stay where no cell names it."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.errors import NotRegistrable, OutcomeUnknown, Refused, Throttled, Trimmed
from outbox.ports import Create
from outbox.streams import Inputs, OrderedLog, Position, Processor, Step
from outbox.streams.cells import Cell
from outbox.streams.log_places import Place, place_of
from outbox.streams.plan import RowTarget
from outbox.streams.register import Out
from outbox.streams.replica import Progress, Replica
from tests.unit.streams.making import Total, made, put_raw, values

LARGE = "x" * 1_100_000
OTHER = "y" * 1_100_000


class Blobs(dict[str, bytes]):
    """Blobs in memory; `before_write` and `after_write` may raise."""

    def __init__(self) -> None:
        super().__init__()
        self.after_write: Callable[[], None] = lambda: None

    async def write(self, name: str, data: bytes) -> bool:
        is_new = name not in self
        self[name] = bytes(data)
        self.after_write()
        return is_new

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        return self.get(name)

    async def delete(self, name: str) -> None:
        self.pop(name, None)


class Unsteady:
    """A store whose next write of a cell ends with this error, before it is done or after."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.before: list[Exception] = []
        self.after: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, operations: Any) -> Any:
        is_cell = isinstance(operations[0], Create) and operations[0].key.id.isdigit()
        if is_cell and self.before:
            raise self.before.pop()
        answer = await self._store.write(operations)
        if is_cell and self.after:
            raise self.after.pop()
        return answer


@pytest.fixture
def blobs() -> Blobs:
    return Blobs()


@pytest.fixture
def store(engine: Engine) -> Unsteady:
    return Unsteady(engine.store())


@pytest.fixture
def place(engine: Engine, store: Any, blobs: Any) -> Place:
    return Place(store, blobs, place_of(engine).now_ms)


async def trimmed(log: OrderedLog[Any], index: int) -> None:
    """Trim a log up to a cell."""
    await log.register("reader", Position(index))
    await log.trim()


async def test_an_entry_that_was_appended_twice_outlives_the_trim_of_its_first_cell(place: Place) -> None:
    reader = made("texts", place, str)
    await reader.register("reader")
    for n in range(2):  # a producer that was killed before it had its answer, and begins again
        assert await made("texts", place, str).append(LARGE, id="a") == Position(n)
    await trimmed(reader, 1)
    assert await values(made("texts", place, str)) == [LARGE]


@pytest.mark.parametrize("begins_again", [False, True])
async def test_a_retry_of_a_trimmed_entry_leaves_no_blob(begins_again: bool, place: Place, blobs: Blobs) -> None:
    log = made("texts", place, str)
    await log.append(LARGE, id="a")
    await trimmed(log, 1)
    assert not blobs
    again = made("texts", place, str) if begins_again else log
    assert await again.append(LARGE, id="a") == Position(1 if begins_again else 0)
    assert len(blobs) == begins_again


async def test_an_entry_that_another_process_has_appended_has_one_blob(place: Place, blobs: Blobs) -> None:
    start = Position(0)
    for _ in range(2):
        assert await made("texts", place, str).append(LARGE, id="a", since=start) == start
    assert len(blobs) == 1 and await values(made("texts", place, str)) == [LARGE]


async def test_an_append_that_is_refused_leaves_no_blob(place: Place, store: Unsteady, blobs: Blobs) -> None:
    log = made("texts", place, str)
    await log.append("small", id="a")
    await log.append(LARGE, id="b")
    before = dict(blobs)
    store.before = [Throttled("too many requests")]
    with pytest.raises(Throttled):
        await log.append(LARGE, id="c")
    with pytest.raises(Refused, match="other entries"):
        await log.append(LARGE, id="a")
    with pytest.raises(Refused, match="other entries"):
        await log.append(OTHER, id="b")
    await trimmed(log, 1)
    with pytest.raises(Trimmed):
        await made("texts", place, str).append(LARGE, id="c", since=Position(0))
    assert blobs == before and await values(log) == [LARGE]


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_retry_after_an_unknown_outcome_writes_the_same_blob(
    is_written: bool, place: Place, store: Unsteady, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = made("texts", place, str)
    await log.append("small", id="a")
    (store.after if is_written else store.before).append(OutcomeUnknown("no answer"))
    with monkeypatch.context() as patch, pytest.raises(OutcomeUnknown):
        patch.setattr(store, "read", failing, raising=False)
        await log.append(LARGE, id="b")
    (name,) = blobs
    if not is_written:
        store.before.append(Throttled("too many requests"))
        with pytest.raises(Throttled):
            await log.append(LARGE, id="b")
    assert [*blobs] == [name], "a cell may name it"
    assert await log.append(LARGE, id="b") == Position(1)
    assert [*blobs] == [name] and await values(log) == ["small", LARGE]


async def failing(*given: Any, **options: Any) -> Any:
    raise Throttled("too many requests")


async def test_a_blob_without_an_answer_is_that_of_the_next_try(place: Place, blobs: Blobs) -> None:
    log = made("texts", place, str)
    answers = iter([True, False])

    def lost() -> None:
        if next(answers):
            raise OutcomeUnknown("no answer")

    blobs.after_write = lost
    with pytest.raises(OutcomeUnknown):
        await log.append(LARGE, id="a")
    await log.append(LARGE, id="a")
    assert len(blobs) == 1 and await values(log) == [LARGE]


def copy(total: Total, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        step.emit("out", entry.value)


@pytest.mark.parametrize("knows_the_floor", [False, True])
async def test_a_slow_replica_leaves_no_blob_of_what_was_trimmed(
    knows_the_floor: bool, engine: Engine, place: Place, blobs: Blobs
) -> None:
    given, out = made("in", engine, str), made("out", place, str)

    def replica() -> Replica:
        own: dict[str, Any] = {"inputs": {"in": made("in", engine, str)}, "outputs": {"out": made("out", place, str)}}
        return Processor("copy", copy, state=Total, register=engine, **own).replica()

    await given.append(LARGE, id="a")
    slow, other = replica(), replica()
    while slow.known is None or not slow.known.register.outs:
        await slow.step()
    while await other.step() is not Progress.IDLE:
        pass
    assert other.known is not None
    await out.register("reader", Position(1))
    await other.report(other.known.register)
    await out.trim()
    assert not blobs
    if knows_the_floor:  # else it does not look, and finds a tombstone
        await slow.plan.outputs["out"].log.row(0, 0).horizon.read()
    await slow.step()
    assert not blobs


async def test_a_step_of_another_processor_of_this_name_leaves_no_blob(place: Place, blobs: Blobs) -> None:
    row = made("texts", place, str).row(0, 0)
    now_ms = place.now_ms()
    times = {"since": 0, "at_ms": now_ms, "until_ms": now_ms + 60_000}
    await RowTarget(row).write("step", Out("texts", [msgspec.Raw(msgspec.json.encode(LARGE))]), **times)
    (name,) = blobs
    with pytest.raises(NotRegistrable, match="another processor of this name"):
        await RowTarget(row).write("step", Out("texts", [msgspec.Raw(msgspec.json.encode(OTHER))]), **times)
    assert [*blobs] == [name]


async def test_a_cell_whose_blob_has_an_older_name_is_read_and_trimmed(
    engine: Engine, place: Place, blobs: Blobs
) -> None:
    data = msgspec.json.encode([LARGE])
    digest = sha256(data).hexdigest()
    blobs[f"log/texts/0.0/{sha256(b'a').hexdigest()}-{digest[:16]}"] = data
    (name,) = blobs
    cell = Cell("a", 1, 1, blob=name, digest=digest)
    log = made("texts", place, str)
    await put_raw(engine.store(), "log/texts/0.0/0", "0000000000", msgspec.json.encode(cell))
    assert await values(log) == [LARGE]
    assert await made("texts", place, str).append(LARGE, id="a", since=Position(0)) == Position(0)
    assert [*blobs] == [name] and await values(log) == [LARGE]
    await trimmed(log, 1)
    assert not blobs
