"""Single steps of logs, processors and sinks, each asked by itself: pauses, limits, and what they remember."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from outbox.engine.backend.blobs import MemoryBlobStore
from outbox.engine.engine import Engine
from outbox.errors import CorruptRecord, OtherLog, OutcomeUnknown, Refused, TooLarge
from outbox.message import ID_BYTES_MAX, Message
from outbox.ports import Delivery, Document, DocumentKey, NoBlobs, Output, QueueRef, StorePorts
from outbox.runtime.work import Work
from outbox.streams import Step, cells, sinks
from outbox.streams.cells import Cell, Cells, Position, decode_cell, tombstone_of
from outbox.streams.horizon import Floor
from outbox.streams.log_places import POLL_S_FIRST, ChangeWait, place_of
from outbox.streams.plan import QueueOutput
from outbox.streams.processor import LOOKS_MAX, PAUSE_S_MAX, Errors, log_recovery
from outbox.streams.register import Out, Register, StateFull, check_size, check_state, groups_of, register_bytes_max
from outbox.streams.replica import Progress
from outbox.streams.row import NotThere
from outbox.streams.values import BLOB_BYTES_MAX, ENTRIES_MAX, whole
from tests.unit.streams.making import Total

RAW = msgspec.Raw(b"1")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses made, none of which takes any time."""
    made = list[float]()

    async def sleep(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return made


# Errors and waits


async def test_each_error_in_a_row_waits_twice_as_long_and_the_next_row_begins_anew(pauses: list[float]) -> None:
    errors = Errors("a loop")
    for _ in range(12):
        errors.failed(Refused("full"))
        await errors.pause()
    assert pauses[:3] == [0.05, 0.1, 0.2] and pauses[-3:] == [PAUSE_S_MAX] * 3
    assert (errors.count, str(errors.last)) == (12, "full")
    errors.ended()
    assert (errors.count, errors.last) == (0, None)
    errors.failed(OutcomeUnknown("no answer"))
    await errors.pause()
    assert pauses[-1] == 0.05


async def test_no_pause_goes_beyond_the_end(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.streams.processor.time.monotonic", lambda: 99.99)
    for until_s in (100.0, 99.0):
        await Errors("a loop", until_s).pause()
    assert pauses == [pytest.approx(0.01), 0.0]


def test_a_cell_is_missing_after_so_many_looks_in_a_row() -> None:
    errors, missing = Errors("a loop"), NotThere("cell 7 is not there")
    for is_error in (True, False):
        for _ in range(LOOKS_MAX - 1):
            errors.failed(missing)
        if is_error:
            errors.failed(Refused("full"))
        else:
            errors.ended()
    for _ in range(LOOKS_MAX - 1):
        errors.failed(missing)
    with pytest.raises(OtherLog, match="cell 7"):
        errors.failed(missing)


@pytest.mark.parametrize(("count", "lines"), [(0, 0), (1, 0), (2, 1)])
def test_a_recovery_is_logged_after_several_failures(count: int, lines: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="outbox.streams"):
        log_recovery("sink s", count)
    assert [vars(record)["failures"] for record in caplog.records] == [count] * lines


class Quiet:
    """A store that does not say when something has changed."""


class Watching:
    """A store that notes for how long it is waited for."""

    def __init__(self) -> None:
        self.waited_s = list[float]()

    async def changed(self, seen: Sequence[Any], *, wait_s: float) -> None:
        self.waited_s.append(wait_s)


async def test_a_store_that_does_not_tell_is_looked_at_ever_later_until_something_is_found() -> None:
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    store: Any = Quiet()
    waiting = ChangeWait(1.0, sleep)
    for _ in range(8):
        await waiting.wait({store: []})
    assert slept == [*(POLL_S_FIRST * 2**n for n in range(6)), 1.0, 1.0]
    await waiting.wait({store: []}, at_most_s=0.5)
    waiting.reset()
    await waiting.wait({store: []})
    assert slept[-2:] == [0.5, POLL_S_FIRST]


async def test_a_store_that_tells_is_waited_for_as_long_as_may_be() -> None:
    store: Any = Watching()
    waiting = ChangeWait(1.0)
    for at_most_s in (None, 0.25, 9.0):
        await waiting.wait({store: []}, at_most_s=at_most_s)
    assert store.waited_s == [1.0, 0.25, 1.0]


async def test_whoever_waits_for_several_stores_learns_what_one_of_them_fails_with() -> None:
    class Failing:
        async def changed(self, seen: Sequence[Any], *, wait_s: float) -> None:
            raise Refused("no")

    class Silent:
        is_cancelled = False

        async def changed(self, seen: Sequence[Any], *, wait_s: float) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.is_cancelled = True
                raise

    failing, silent = Failing(), Silent()
    stores: Any = {failing: [], silent: []}
    with pytest.raises(Refused, match="no"):
        await asyncio.wait_for(ChangeWait().wait(stores), 5)
    await asyncio.sleep(0)
    assert silent.is_cancelled


async def test_logs_live_beside_the_protocol_s_own_documents_where_states_are_apart(engine: Engine) -> None:
    states, infrastructure = engine.store(), engine.store()
    ports: Any = engine.apart()
    for own in (infrastructure, None):
        both = replace(ports, store=states, infrastructure=own)
        assert isinstance(both, StorePorts)
        assert place_of(SimpleNamespace(ports=lambda both=both: both)).store is (own or states)


async def test_a_sink_that_loses_again_and_again_lets_others_go_first(pauses: list[float]) -> None:
    ends = iter([Progress.LOST] * 4 + [Progress.WON] + [Progress.LOST] * 2)

    class Losing:
        name, row = "s", SimpleNamespace()

        async def step(self) -> Progress:
            return next(ends)

    sink: Any = Losing()
    loop = sinks.SinkLoop(sink, 1.0)
    for _ in range(7):
        await loop.turn(pauses=False)
    assert pauses == [0, 0.05, 0.1, 0.2, 0, 0.05]


# Cells and floors


@pytest.mark.parametrize(("at", "before"), [((0, 0), -1), ((7, 0), 6), ((7, 1), 7), ((7, 9), 7)])
def test_the_cell_before_a_place_is_that_of_the_entry_before_it(at: tuple[int, int], before: int) -> None:
    assert Position(*at).before == before


@pytest.mark.parametrize(
    ("cell", "is_one"),
    [
        (Cell("a", 1, 2, [RAW, RAW]), True),
        (Cell("a", 1, 2, [RAW, RAW], ["A", "B"]), True),
        (Cell("a", 1, 1, [RAW, RAW]), False),
        (Cell("a", 1, 0, []), False),
        (Cell("a", 1, 2, [RAW, RAW], ["A"]), False),
        (Cell("a", 1, 2, [], blob="b", digest="d"), True),
        (Cell("a", gone=True), True),
    ],
)
def test_a_cell_holds_as_many_entries_and_types_as_it_says(cell: Cell, is_one: bool) -> None:
    document = Document(DocumentKey("p", "0"), msgspec.json.encode(cell), "1")
    if is_one:
        assert decode_cell(document) == cell
        return
    with pytest.raises(CorruptRecord, match="not a cell"):
        decode_cell(document)


def test_a_tombstone_names_its_cell_and_the_blob_that_is_to_go() -> None:
    tombstone = msgspec.json.decode(tombstone_of(Cell("a", 1, 1, [], blob="b", digest="d")), type=Cell)
    assert tombstone == Cell("a", gone=True, blob="b")


@pytest.mark.parametrize(
    ("readers", "writers", "horizon"),
    [({}, {}, 9), ({"r": 4}, {"w": 7}, 4), ({"r": 7, "s": 5}, {"w": 4}, 4), ({"r": 12}, {}, 9)],
)
def test_a_trim_goes_up_to_whoever_is_furthest_behind(
    readers: dict[str, int], writers: dict[str, int], horizon: int
) -> None:
    assert Floor(readers=readers, writers=writers).horizon(9) == horizon


async def test_the_hint_is_raised_now_and_then_and_never_lowered(engine: Engine) -> None:
    row = Cells(engine.store(), "log/l/0.0", now_ms=engine.now_ms)
    found = list[int]()
    for end, walked_count in (
        (cells.HINT_EVERY - 1, cells.WALKED_MAX - 1),
        (cells.HINT_EVERY, 0),
        (2 * cells.HINT_EVERY - 1, 0),
        (2 * cells.HINT_EVERY - 1, cells.WALKED_MAX),
    ):
        row.end = end
        await row.raise_hint_if_due(walked_count)
        found.append((await row._read_hint())[0])
    assert found == [0, cells.HINT_EVERY, cells.HINT_EVERY, 2 * cells.HINT_EVERY - 1]
    behind = Cells(engine.store(), "log/l/0.0", now_ms=engine.now_ms)
    behind.end = cells.HINT_EVERY
    await behind.raise_hint_if_due(0)
    assert (await behind._read_hint())[0] == 2 * cells.HINT_EVERY - 1


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_cells_that_are_trimmed_expire_as_tombstones_also_where_there_is_none(engine: Engine, scope: str) -> None:
    store: Any = engine.store()
    store.capabilities = replace(store.capabilities, atomic_scope=scope)
    row = Cells(store, "log/l/0.0", now_ms=engine.now_ms)
    await row.append(Cell("a", 1, 1, [RAW]), 0, until_ms=1 << 60)
    buried = await row.bury(range(2), ttl_s=600.0)
    assert [cell.id for cell in buried] == ["a"]
    for index, id in enumerate(("a", "")):
        document = engine.state.documents.spaces["p/log/l/0.0/0"][f"{index:010}"]
        assert msgspec.json.decode(document.value, type=Cell) == Cell(id, gone=True)
        assert 599_000 < document.expires_ms - engine.now_ms() <= 600_000


async def test_the_entries_of_a_blob_are_those_that_were_written() -> None:
    blobs, data = MemoryBlobStore(), msgspec.json.encode([1, 2])
    await blobs.write("b", data)
    cell = Cell("a", 1, 2, [], blob="b", digest=sha256(data).hexdigest())
    assert (await whole(cell, blobs, "log")).v == [msgspec.Raw(b"1"), msgspec.Raw(b"2")]
    another = msgspec.structs.replace(cell, digest="0" * 64)
    for unread, state in ((another, "not the one"), (Cell("a", blob="c"), "missing")):
        with pytest.raises(CorruptRecord, match=state):
            await whole(unread, blobs, "log")
    large = SimpleNamespace(read=None)

    async def read(name: str, *, bytes_max: int) -> bytes:
        large.bytes_max = bytes_max
        return data

    large.read = read
    await whole(cell, large, "log")
    assert large.bytes_max > BLOB_BYTES_MAX  # a list of as much has commas as well


# Registers


@pytest.mark.parametrize(("clock", "made_ms"), [(0, 17), (5, 5)])
def test_messages_are_made_by_the_clock_of_the_replica_that_took_the_step(clock: int, made_ms: int) -> None:
    assert Register(now=17, clock=clock).made_ms == made_ms


def of_messages(*given: tuple[bytes, int]) -> list[Work]:
    """Works of these inbox keys, with bodies of these sizes."""
    return [
        Work(Delivery("q", n, Message(body=b"x" * size), 0, 0, 0), inbox=inbox) for n, (inbox, size) in enumerate(given)
    ]


def test_messages_are_committed_in_groups_without_copies_that_one_commit_holds() -> None:
    works = of_messages((b"a", 4), (b"b", 2), (b"a", 4), (b"c", 1), (b"d", 99), (b"", 3), (b"", 3), (b"e", 0))
    groups = [[work.delivery.sequence for work in group] for group in groups_of(works, 10)]
    assert groups == [[0, 1, 3, 5, 7], [2, 6], [4]]


async def test_a_register_holds_as_many_bytes_as_its_store_lets_it(engine: Engine) -> None:
    store = engine.store()
    room = register_bytes_max(store)
    out = Out("q", [msgspec.Raw(b"12")], ["T"], keys=["kk"])
    taken = 3 + (1 + 3) + (2 + 3)  # the value, its type and its key, each with what is round it
    check_size({}, store, room - taken, [out])
    with pytest.raises(TooLarge, match="the register holds"):
        check_size({}, store, room - taken + 1, [out])


@pytest.mark.parametrize(
    ("before_share", "state_share", "entry_count", "is_full"),
    [(0.6, 1.1, 1, True), (0.6, 1.1, 0, True), (0.6, 1.1, 2, False), (0.4, 1.1, 1, False), (0.6, 1.0, 1, False)],
)
async def test_a_state_that_was_large_before_is_full_and_no_entry_is_to_blame(
    engine: Engine, before_share: float, state_share: float, entry_count: int, is_full: bool
) -> None:
    store = engine.store()
    room = register_bytes_max(store)
    before = Register(state=msgspec.Raw(b'"' + b"x" * round(room * before_share) + b'"'))
    if not is_full:
        check_state("p", store, before, int(room * state_share), entry_count)
        return
    with pytest.raises(StateFull):
        check_state("p", store, before, int(room * state_share), entry_count)


# Steps and queues


def test_a_step_wakes_at_the_earliest_of_the_times_that_are_asked_for() -> None:
    step = Step([], 1_000, 1)
    for ms, wake_ms in ((5_000, 5_000), (7_000, 5_000), (4_000.9, 4_000)):
        step.wake_at(ms)  # type: ignore[arg-type]  # a time may be a fraction
        assert step.wake_ms == wake_ms
    for none in (0, -1, True, 1 << 62, "5"):
        with pytest.raises(ValueError, match="wake_at"):
            step.wake_at(none)  # type: ignore[arg-type]  # what is tried


def test_a_step_emits_so_many_values_to_an_output_and_no_more() -> None:
    step = Step(["a", "b"], 1_000, 1)
    for n in range(ENTRIES_MAX):
        step.emit("a", n)
    step.emit("b", 1)
    with pytest.raises(TooLarge, match="'a'"):
        step.emit("a", 0)


async def test_what_a_step_emits_to_a_queue_are_the_same_messages_whoever_sends_them() -> None:
    sent = list[Output]()

    async def send(outputs: Sequence[Output]) -> None:
        sent.extend(outputs)

    queue = QueueOutput(QueueRef("q", send, NoBlobs(), lambda total: f"k{total.n}", "", 3))
    out = queue.out("totals", [Total(1), Total(2)])
    assert await queue.write("id", out, since=5, at_ms=17, until_ms=0) == 5
    assert [(each.destination, each.due_ms) for each in sent] == [("q", 0)] * 2
    assert [each.message for each in sent] == [
        Message(
            body=b'{"n":%d}' % n,
            outbox_id=f"id-{n - 1}",
            type="Total",
            created_ms=17,
            session_id=f"k{n}",
            properties={"outbox-schema": 3},
        )
        for n in (1, 2)
    ]


@pytest.mark.parametrize(("length", "is_one"), [(ID_BYTES_MAX, True), (ID_BYTES_MAX + 1, False), (0, False)])
def test_the_key_of_a_message_may_be_as_long_as_an_id(length: int, is_one: bool) -> None:
    queue = QueueOutput(QueueRef("q", None, NoBlobs(), lambda total: "x" * length))  # type: ignore[arg-type]  # nothing is sent
    if is_one:
        assert queue.out("totals", [Total(1)]).keys == ["x" * length]
        return
    with pytest.raises(Exception, match="key"):
        queue.out("totals", [Total(1)])
