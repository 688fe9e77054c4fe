"""Single steps of a pipeline, each asked by itself: its figures, exchange, grouping, windows, times, and workers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.errors import NotRegistrable, PoisonMessage, Refused
from outbox.ports import Create
from outbox.runtime.counts import PipelineFigures
from outbox.streams import Emit, OrderedLog, Position
from outbox.streams.cells import Cell, Cells
from outbox.streams.pipeline import checkpoint, running, tasks
from outbox.streams.pipeline import workers as worker_processes
from outbox.streams.pipeline.changes import applied, combined
from outbox.streams.pipeline.checkpoint import (
    PARTS_MAX,
    Chain,
    Checkpoint,
    PartRef,
    Section,
    base_count,
    in_parts,
    merge_count,
    merged,
    merging,
)
from outbox.streams.pipeline.core import OperatorFailed, Reduce, Stateless
from outbox.streams.pipeline.event_time import TIME_MS_MAX, Timed
from outbox.streams.pipeline.exchange import (
    SINK,
    Answer,
    Begin,
    Exchange,
    Failed,
    Look,
    Moved,
    Save,
    identity_of,
    owner_of,
)
from outbox.streams.pipeline.figures import figures_of
from outbox.streams.pipeline.grouping import Speculative
from outbox.streams.pipeline.operators import Frame, Operator, Record
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.release import BUFFERED
from outbox.streams.pipeline.running import PipelineLoop
from outbox.streams.pipeline.states import SLOTS, key_of, slot_of, text_of
from outbox.streams.pipeline.tasks import BeginAgain, LocalTasks
from outbox.streams.pipeline.window import Open, Windows
from outbox.streams.pipeline.worker import TaskWorker
from outbox.streams.pipeline.workers import IN_FLIGHT_MAX, SPARE, Link, WorkerDied, WorkerLost, Workers, WorkerTasks
from tests.unit.streams.pipeline.counting import Change, Count, Counting, Page, Word, count, recorded
from tests.unit.streams.pipeline.selling import Sale, Selling, Takings


def raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


def plan_of_words() -> PipelinePlan:
    return Counting(Engine.in_memory()).pipeline.plan()


def operator_of_sales(name: str, **options: Any) -> Operator:
    plan = Selling(Engine.in_memory()).pipeline.plan()
    return replace(next(operator for operator in plan.operators if operator.name == name), **options)


# Figures


async def cells_of(engine: Engine, name: str, *cells: Cell) -> Cells:
    row = OrderedLog(name, engine, type=int).row(0, 0)
    await row.opened()
    for number, cell in enumerate(cells):
        await engine.store().write([Create(row.cells.key(number), msgspec.json.encode(cell))])
    return row.cells


async def test_figures_count_from_a_checkpoint_and_from_the_sink_that_is_least_far() -> None:
    def cell(count: int, at_ms: int, until: Position | None = None) -> Cell:
        return Cell(f"c{at_ms}", at_ms, count, [raw("1")] * count, begin=until and Position(0), until=until)

    engine = Engine.in_memory()
    source = await cells_of(engine, "source", cell(3, 10), cell(2, 20), cell(4, 30))
    sinks = {
        "first": await cells_of(engine, "first", cell(1, 39, Position(0, 2)), cell(5, 40, Position(1, 1))),
        "second": await cells_of(engine, "second", cell(2, 41, Position(2))),
    }
    chains = {name: Chain(0, Position(0)) for name in (*sinks, "empty")}
    stands = Checkpoint(1, Position(0, 1), chains, time=7, made=9)
    assert await figures_of(stands, source, sinks) == PipelineFigures(8, 5, 10, "1.1", 9, {"first": 5, "second": 2})
    stands = msgspec.structs.replace(stands, c=Position(0, 3))  # all of that cell
    sinks["empty"] = await cells_of(engine, "empty")
    found = await figures_of(stands, source, sinks)
    assert found == PipelineFigures(6, 6, 20, "0.3", 9, {"first": 5, "second": 2})
    stands = msgspec.structs.replace(stands, c=Position(2, 4))
    found = await figures_of(stands, source, sinks)
    assert found == PipelineFigures(0, 0, 0, "2.4", 9, {"first": 5, "second": 2})


# Exchange and grouping


def test_a_pipeline_of_another_graph_is_another_one() -> None:
    plan = plan_of_words()
    for other in (replace(plan, name="other"), replace(plan, version=2), replace(plan, operators=plan.operators[:1])):
        assert identity_of(other) != identity_of(plan)


def test_each_value_goes_to_the_worker_of_its_key_with_its_time_or_without() -> None:
    plan = Selling(Engine.in_memory()).pipeline.plan()
    sales = [Sale(article, 5, 1) for article in "abcdefgh"]
    entries: list[Record] = [(Position(n), (), 5, sale) for n, sale in enumerate(sales)]
    timed: list[Record] = [(Position(n), (), 5, (5, False, sale)) for n, sale in enumerate(sales)]
    for made, name in (
        ({"": Frame(entries, Position(9))}, "total"),
        ({"lately~time": Frame(timed, Position(9))}, "lately"),
    ):
        for to, worker, frame in Exchange(plan, 3).shares(made):
            if to == name:
                found = [record[3] if name == "total" else record[3][2] for record in frame.records]
                assert found == [sale for sale in sales if owner_of(sale.article, 3) == worker] and found


def in_order_only(state: Count, word: Word, emit: Emit[Change]) -> None:
    """Fails on all but the order of the source."""
    if int(word.text[1:]) != state.n:
        raise ValueError(word.text)
    state.n += 1
    emit(Change(word.text, state.n))


def speculative(function: Any, **options: Any) -> Speculative:
    (operator,) = (each for each in plan_of_words().operators if each.kind == "reduce")
    core = Reduce("index", replace(operator, function=function, key=lambda word: word.text[0], **options))
    return Speculative(2, Position(0), core)


def frame(*texts: str, upto: int) -> Frame:
    return Frame([(Position(int(text[1:])), (text[0],), 0, Word(text)) for text in texts], Position(upto))


def changes(found: Frame | None) -> list[tuple[str, int]]:
    assert found is not None
    return [(record[3].word, record[3].n) for record in found.records]


@pytest.mark.parametrize("function", [count, in_order_only])
def test_what_is_applied_ahead_is_taken_back_when_an_earlier_record_comes_and_leaves_in_order(function: Any) -> None:
    group = speculative(function)
    states = group.core.states
    assert group.feed(0, frame("a1", "b0", "a2", upto=3)) is None and not states.all()
    assert changes(group.feed(1, frame("a0", upto=1))) == [("a0", 1), ("b0", 1)]
    assert states.all() == {"a": Count(1), "b": Count(1)} and set(group.pending) == {"a"}
    assert changes(group.feed(1, frame(upto=3))) == [("a1", 2), ("a2", 3)]
    assert states.all() == {"a": Count(3), "b": Count(1)}
    states.begin(Position(1), Position(3))
    assert states.save(9) and [key for saved in states.saved().values() for key in saved.states] == ["sa"]
    group.feed(0, frame("a3", upto=4))
    assert changes(group.feed(1, frame(upto=4))) == [("a3", 4)]
    assert not group.pending and not group.made and not group.ahead


def test_what_fails_in_the_order_of_the_source_fails_when_that_is_known() -> None:
    group = speculative(in_order_only)
    assert group.feed(0, frame("a1", upto=2)) is None
    with pytest.raises(OperatorFailed, match=r"at 1\.0"):
        group.feed(1, frame(upto=2))


def refusing_first(state: Count, word: Word, emit: Emit[Change]) -> None:
    """Changes its state before it refuses."""
    count(state, word, emit)
    if word.text == "a0":
        raise PoisonMessage("bad", "the first")


def test_what_is_refused_ahead_leaves_nothing_in_what_comes_behind_it() -> None:
    group = speculative(refusing_first, refuses=True)
    assert group.feed(0, frame("a0", "a1", upto=2)) is None
    found = group.feed(1, frame(upto=2))
    assert changes(found) == [("a1", 1)] and found is not None and len(found.refused) == 1
    assert group.core.states.all() == {"a": Count(1)} and not group.pending


# Windows and times


def in_window(at: int, now_ms: int, sale: Sale) -> Record:
    return Position(at), (0,), now_ms, (sale.ms, False, sale)


def test_a_window_closes_by_the_time_of_all_and_has_the_values_of_its_own() -> None:
    core = Windows("takings", operator_of_sales("lately"))
    core.feed(Frame([in_window(0, 21, Sale("a", 15, 1))], Position(1), [(Position(0), 21)]))
    assert [(state.due_ms, state.at_ms) for state in core.states.all().values()] == [(30, [15])]
    stored = {"sb": msgspec.Raw(core._encode(replace_sale(core, Sale("b", 20, 3))))}
    core.states.load(stored, 1)
    closed = core.feed(Frame([], Position(3), [(Position(1), 29), (Position(2), 30)]))
    assert [record[3] for record in closed.records] == [Takings("a", 30, 1), Takings("b", 30, 3)]
    assert list(core.states.all()) == ["b"]
    assert [record[3] for record in core.feed(Frame([], Position(4), [(Position(3), 40)])).records] == [
        Takings("b", 40, 3)
    ]
    assert not core.states.all()


def test_a_window_whose_span_a_newer_version_changes_keeps_to_the_new_one() -> None:
    core = Windows("takings", operator_of_sales("lately"))
    sales = [Sale("a", ms, ms) for ms in (1, 11, 17)]
    of_25 = core._encode(Open(25, [sale.ms for sale in sales], sales))
    core.states.load({"sa": msgspec.Raw(of_25), "sb": msgspec.Raw(core._encode(Open(25, [1], sales[:1])))}, 1)
    closed = core.feed(Frame([], Position(3), [(Position(2), 30)]))
    assert [record[3] for record in closed.records] == [Takings("a", 30, 28)]


def replace_sale(core: Windows, sale: Sale) -> Any:
    """The state of a window that has this sale."""
    (state,) = core.states.all().values()
    return msgspec.structs.replace(state, at_ms=[sale.ms], values=[sale])


@pytest.mark.parametrize("ms", [TIME_MS_MAX, -TIME_MS_MAX, 0])
def test_a_time_up_to_its_limit_is_taken_and_ticks_once(ms: int) -> None:
    core, sale = Timed("takings", operator_of_sales("lately~time")), Sale("a", ms, 1)
    found = core.feed(Frame([(Position(n), (), 7, sale) for n in range(2)], Position(2)))
    assert found.records == [(Position(n), (), ms, (ms, False, sale)) for n in range(2)]
    assert found.ticks == [(Position(0), ms)]


@pytest.mark.parametrize("ms", [TIME_MS_MAX + 1, -TIME_MS_MAX - 1, 5.0, True, "5", None])
def test_a_time_beyond_its_limit_or_of_another_type_fails(ms: Any) -> None:
    core = Timed("takings", operator_of_sales("lately~time", function=lambda sale: ms))
    with pytest.raises(OperatorFailed, match="give milliseconds since 1970, an int"):
        core.feed(Frame([(Position(0), (), 7, Sale("a", 1, 1))], Position(1)))


@pytest.mark.parametrize("kind", ["reduce", "window"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_key_of_more_digits_than_can_be_read_fails_with_its_operator_and_position(kind: str, sign: int) -> None:
    key = sign * (10**4_300 - 1)
    name, core_of, value = (
        ("total", Reduce, Sale("a", 1, 1)) if kind == "reduce" else ("lately", Windows, (1, False, 1))
    )
    core: Any = core_of("p", operator_of_sales(name, key=lambda value: key))
    core.feed(Frame([(Position(0), (), 1, value)], Position(1)))
    assert list(core.states.by_key) == [key] and key_of(text_of(key)) == key
    key += sign
    with pytest.raises(
        OperatorFailed, match=rf"operator {name} fails on the entry at 1\.0 .* an int of up to 4300 digits"
    ):
        core.feed(Frame([(Position(1), (), 1, value)], Position(2)))


# Changes and tasks


def test_changes_of_a_field_that_was_not_there_make_it_a_map_by_its_keys_or_a_list() -> None:
    of_map, of_list = (
        raw('{"members":{"m":{"b":[1],"a":[2],"c":[]}}}'),
        raw('{"members":{"m":{"0":[1]}},"lengths":{"m":1}}'),
    )
    assert bytes(applied(raw("{}"), [of_map])) == b'{"m":{"a":2,"b":1}}'
    assert bytes(applied(raw("{}"), [of_list])) == b'{"m":[1]}'
    without_b = raw('{"members":{"m":{"b":[]}}}')
    for changes in ([of_map, without_b], [combined([of_map, without_b])]):
        assert bytes(applied(raw('{"m":{"c":3,"b":0}}'), changes)) == b'{"m":{"a":2}}'


@pytest.mark.parametrize("returned", [None, "text", 7])
@pytest.mark.parametrize("kind", ["flat_map", "window"])
def test_what_should_return_several_results_and_does_not_stops_with_its_name(kind: str, returned: Any) -> None:
    operator = operator_of_sales("lately", function=lambda *given: returned)
    core = Windows("p", operator) if kind == "window" else Stateless("p", replace(operator, kind=kind))
    sale = (Position(0), (), 1, (1, False, Sale("tea", 1, 1)))  # as it comes with a time
    with pytest.raises(OperatorFailed, match=r"operator lately fails on .* not a list or an iterator of results"):
        core.feed(Frame([sale], Position(2), [(Position(1), 10**9)]))


def test_parts_are_merged_a_key_a_step() -> None:
    whole = Section("count", 1, 1, {f"s{n}": raw('{"m":{}}') for n in range(3)})
    changes = {f"s{n}": raw('{"members":{"m":{"a":[1]}}}') for n in range(1, 5)}
    *steps, last = merging([whole, Section("count", 1, 1, {}, changes)])
    assert steps == [None] * 4 and last == merged([whole, Section("count", 1, 1, {}, changes)])
    assert {key: bytes(each) for key, each in merged([whole]).states.items()} == dict.fromkeys(
        whole.states, b'{"m":{}}'
    )


@pytest.mark.parametrize("full", [300_000, 64 << 20])
@pytest.mark.parametrize("size_bytes", [1, 100, 1_000, 50_000])
def test_parts_are_few_and_are_twice_the_states_at_most_and_are_seldom_written_again(
    size_bytes: int, full: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "PART_BYTES", full)
    parts: list[PartRef] = []
    written = 0
    for number in range(600):
        again = parts[len(parts) - merge_count(parts, size_bytes) :]
        # the more is written as one the more of it are changes of the same states, which take 1 MB
        data = min(1_000_000, size_bytes + sum(part.size_bytes for part in again))
        made = [len(b"\n".join(part)) for part in in_parts([b"." * min(999, data)] * -(-data // 1_000))]
        parts = [*parts[: len(parts) - len(again)], *(PartRef(f"part {number}", "", size) for size in made)]
        written += data
        sizes = [part.size_bytes for part in parts]
        base = base_count(sizes)
        assert all(size >= full for size in sizes[: base - 1])
        assert len(parts) - base < PARTS_MAX
        assert sum(sizes[base:]) <= sum(sizes[:base])
    assert written < 5 * 600 * size_bytes


@pytest.mark.parametrize(("schema", "is_other"), [(1, False), (0, True)])
async def test_loaded_states_of_another_schema_are_said_to_be(schema: int, is_other: bool) -> None:
    tasks = LocalTasks(plan_of_words(), lambda *_: None)
    assert await tasks.load(Section("count", 0, schema, {})) is is_other


# The loop of a replica


@dataclass
class Incarnation:
    """A replica that another overtakes in its first turn; what is done to it goes to `done`."""

    done: list[object]
    plan: PipelinePlan
    released = Position(0)
    fed = asyncio.Event()
    turns = (True, False, True)

    def __post_init__(self) -> None:
        self.tasks = SimpleNamespace(beside=[])
        self.left = list(self.turns)

    async def begin(self, *, again: bool = False) -> None:
        self.done.append(again)

    async def turn(self) -> bool:
        if not self.left:
            raise BeginAgain
        return self.left.pop(0)

    def seen(self) -> None: ...

    def end(self) -> None:
        self.done.append("end")


async def test_each_incarnation_is_ended_every_second_begins_otherwise_and_workers_are_stopped_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, plan = list[object](), plan_of_words()

    async def stop() -> None:
        done.append("stop")

    monkeypatch.setattr(running, "INCARNATIONS_MAX", 2)
    monkeypatch.setattr(Incarnation, "turns", ())
    monkeypatch.setattr(running, "PipelineReplica", lambda *_, **__: Incarnation(done, plan))
    loop = PipelineLoop(plan, plan.source.log.place, 1_000, cast(Any, SimpleNamespace(stop=stop)))
    with pytest.raises(Refused, match="overtaken each time"):
        await loop.for_ever()
    assert done == [False, "end", True, "end", False, "end", "stop"] and loop.replica is None


async def test_waits_for_entries_begin_anew_behind_some(monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[object]()

    class Wait:
        def __init__(self, poll_s_max: float) -> None: ...

        def reset(self) -> None:
            done.append("reset")

        async def wait(self, seen: object) -> None:
            done.append("wait")

    monkeypatch.setattr(running, "ChangeWait", Wait)
    plan = plan_of_words()
    with pytest.raises(BeginAgain):
        await PipelineLoop(plan, plan.source.log.place, 1)._turns(cast(Any, Incarnation(done, plan)))
    assert done == ["reset", "wait", "reset"]


# Workers


def begun(plan: PipelinePlan) -> TaskWorker:
    worker = TaskWorker(plan)
    list(worker.handle(Begin(0, 0, 1, Position(0), BUFFERED)))
    return worker


def test_a_worker_says_the_keys_of_today_in_each_pass_over_its_slots() -> None:
    plan = plan_of_words()
    worker, exchange = begun(plan), Exchange(plan, 1)
    for number, text in enumerate(("a b", "c a")):
        frame = Frame([(Position(number), (), 0, Page(text))], Position(number + 1))
        for moved in exchange.entries(frame):
            list(worker.handle(Moved(moved.to, 0, moved.frame)))
        found = dict[bytes, bytes]()
        for slot in range(SLOTS):
            (answer,) = worker.handle(Look(slot, "count", slot=slot))
            assert isinstance(answer, Answer) and (answer.id, answer.at) == (slot, Position(number + 1))
            assert all(slot_of(key_of(key.decode())) == slot for key in answer.data[::2])
            found |= dict(zip(answer.data[::2], answer.data[1::2], strict=True))
        wanted = [{b"sa": 1, b"sb": 1}, {b"sa": 2, b"sb": 1, b"sc": 1}][number]
        assert {key: msgspec.json.decode(data)["n"] for key, data in found.items()} == wanted
    (heartbeat,) = worker.handle(Look(7))
    assert heartbeat == Answer(7, Position(0))


def test_a_worker_freezes_its_states_until_it_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(tasks, "gc", recorded(done))
    monkeypatch.setattr(tasks.Frozen, "_users", 0)
    monkeypatch.setattr(tasks.Frozen, "_new", 0)
    plan = plan_of_words()
    worker, exchange = begun(plan), Exchange(plan, 1)
    for number, text in enumerate(("a", "b", "c a")):
        frame = Frame([(Position(number), (), 0, Page(text))], Position(number + 1))
        for moved in exchange.entries(frame):
            list(worker.handle(Moved(moved.to, 0, moved.frame)))
        list(worker.handle(Save(number, Position(number + 1), None)))
        while worker.has_to_save:
            list(worker.save())
        done.append(number)
    for _ in range(2):
        list(worker.handle(Begin(0, 0, 1, Position(0), BUFFERED)))
    assert done == ["collect 0", "freeze", 0, 1, 2, "unfreeze"]


def test_what_records_and_a_worker_s_saves_make_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = list[int]()
    monkeypatch.setattr(tasks.Frozen, "note", noted.append)
    plan = plan_of_words()
    worker, exchange = begun(plan), Exchange(plan, 1)
    for moved in exchange.entries(Frame([(Position(0), (), 0, Page("a b"))], Position(1))):
        list(worker.handle(Moved(moved.to, 0, moved.frame)))
    counted = sum(noted)
    list(worker.handle(Save(0, Position(1), None)))
    list(worker.save())
    assert counted >= 5 * tasks.OBJECTS_A_RECORD and noted[-1] == tasks.OBJECTS_A_PART  # a page, two words, two counts


def test_a_worker_that_begins_again_forgets_what_it_was_to_save() -> None:
    plan = plan_of_words()
    worker = begun(plan)
    assert not list(worker.handle(Save(1, Position(0), None)))
    has_to_save = [worker.has_to_save]
    assert len(list(worker.handle(Begin(2, 0, 1, Position(5), BUFFERED)))) == 1
    for moved in Exchange(plan, 1).entries(Frame([(Position(5), (), 0, Page("a"))], Position(6))):
        list(worker.handle(Moved(moved.to, 0, moved.frame)))
    has_to_save.append(worker.has_to_save)
    assert has_to_save == [True, False]


class Writer:
    """What is sent to a worker."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.is_closed = True


def link(workers: Workers, number: int, heard_s_ago: float) -> Link:
    """A worker, without a process, that has said something so long ago."""

    async def wait() -> None: ...

    found = Link(number, cast(Any, SimpleNamespace(returncode=0, wait=wait)), cast(Any, Writer()))
    found.heard_s = time.monotonic() - heard_s_ago
    workers.links[number] = found
    return found


def tasks_of(workers: Workers) -> WorkerTasks:
    tasks = WorkerTasks(plan_of_words(), lambda *_: None, workers)
    workers._tasks = tasks
    return tasks


async def test_a_silent_worker_ends_its_incarnation_and_a_silent_spare_does_not() -> None:
    workers = Workers(plan_of_words(), "a:b", 2)
    workers.stalled_s = 5.0
    tasks = tasks_of(workers)
    lives, spare = link(workers, 0, 4.0), link(workers, SPARE, 6.0)
    workers.look()
    assert set(workers.links) == {0} and cast(Any, spare.writer).is_closed and not tasks._ended.is_set()
    assert cast(Any, lives.writer).sent and not cast(Any, lives.writer).is_closed
    link(workers, 1, 6.0)
    workers.look()
    assert set(workers.links) == {0}
    with pytest.raises(WorkerDied, match="pipeline index: worker 1: it said nothing for 5 s"):
        tasks._check()


async def test_what_comes_of_an_earlier_incarnation_is_dropped_and_errors_keep_class_and_position() -> None:
    workers = Workers(plan_of_words(), "a:b", 2)
    fed: list[int] = []
    tasks = tasks_of(workers)
    tasks._sinks = {SINK + "changes": cast(Any, SimpleNamespace(feed=lambda channel, _: fed.append(channel)))}
    moved = Exchange(plan_of_words(), 2).moved(SINK + "changes", 0, Frame([], Position(1)))
    tasks.take(1, Answer(99, Position(0)))  # nobody has asked
    tasks.take(1, moved)
    asked = tasks._ask(1, lambda id: Look(id))
    tasks.take(1, Answer(1, Position(3)))
    tasks.take(0, moved)
    assert fed == []
    tasks.take(1, moved)
    assert fed == [1] and (await asked).at == Position(3) and not tasks._asked
    tasks.take(0, Failed("OperatorFailed", "why", Position(4)))
    tasks.take(0, Failed("NotRegistrable", "another"))
    with pytest.raises(OperatorFailed, match="why") as raised:
        tasks._check()
    assert raised.value.position == Position(4)
    other = tasks_of(workers)
    other.take(0, Failed("NotRegistrable", "another"))
    with pytest.raises(NotRegistrable, match="another"):
        other._check()


async def test_so_many_frames_are_under_way_and_no_more() -> None:
    tasks = tasks_of(Workers(plan_of_words(), "a:b", 1))
    for number in range(IN_FLIGHT_MAX):
        await tasks.feed(Frame([], Position(number + 1)), [])
    feeding = asyncio.create_task(tasks.feed(Frame([], Position(9)), []))
    await asyncio.sleep(0)
    assert not feeding.done() and tasks.at == Position(9)
    tasks.end()
    with pytest.raises(BeginAgain):
        async with asyncio.timeout(5):
            await feeding


async def test_workers_are_started_so_often_without_a_checkpoint_and_all_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_processes, "RESTARTS_MAX", 1)
    workers, started = Workers(plan_of_words(), "a:b", 2), list[Link]()
    tasks = tasks_of(workers)

    async def start() -> Link:
        started.append(link(workers, SPARE, 0.0))
        return workers.links.pop(SPARE)

    monkeypatch.setattr(workers, "_started", start)
    await workers.begin(tasks)
    assert workers.restarts == 0, "the first start of each does not count"
    for _ in range(2):
        await workers.have_spare()
    assert len(started) == 3
    workers._lose(workers.links[0], "it ended")
    await workers.begin(tasks)
    assert len(started) == 3 and workers.links[0].number == 0, "the spare takes its place"
    workers._lose(workers.links[1], "it ended")
    with pytest.raises(WorkerLost, match=r"ended 2 times without a checkpoint between \(worker 1: it ended\)"):
        await workers.begin(tasks)
    await workers.have_spare()
    await workers.stop()
    assert not workers.links and all(cast(Any, each.writer).is_closed for each in started)
