"""What goes aside of a pipeline: entries that operators refuse, and values that are late for a window."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pydantic
import pytest

from outbox.engine.engine import Engine
from outbox.errors import PoisonMessage
from outbox.streams import Emit, ListState, MapState, OrderedLog, Pipeline, Position, RefusedEntry, Value
from outbox.streams.log_places import place_of
from outbox.streams.pipeline.core import OperatorFailed
from outbox.streams.pipeline.cores import states_of
from outbox.streams.pipeline.replica import PipelineReplica
from outbox.streams.pipeline.state_fields import fields_of
from outbox.streams.pipeline.states import StateUnstorable
from outbox.streams.pipeline.undo import Undo
from tests.unit.streams.pipeline.counting import Change, Count, Page, Word, cores_in, count, words
from tests.unit.streams.pipeline.selling import Sale, Selling, Takings, article_of, drawn, expected, lately


async def run_through(replica: PipelineReplica) -> PipelineReplica:
    await replica.begin()
    while await replica.turn():
        pass
    return replica


# Late values


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("size_ms", "slide_ms"), [(20, 10), (30, 30), (25, 10)])
async def test_what_comes_out_and_aside_is_that_of_a_judge_whatever_the_checkpoints(
    size_ms: int, slide_ms: int, seed: int
) -> None:
    draw = random.Random(seed)
    made, sales = Selling(Engine.in_memory(), size_ms=size_ms, slide_ms=slide_ms), drawn(draw, 40)
    await made.write(*sales)
    replica = made.replica(entries_max=3)
    await replica.begin()
    while await replica.turn():
        if draw.random() < 0.5:
            await replica.checkpoint()
        if draw.random() < 0.3:
            replica = made.replica(entries_max=draw.choice((1, 2, 5)))
            await replica.begin()
    wanted = expected(sales, size_ms, slide_ms)
    assert await made.released() == wanted
    assert wanted["late"] and wanted["refused"] and wanted["lately"]


async def test_a_restart_at_each_position_makes_the_same_bundles() -> None:
    sales = drawn(random.Random(0), 30)
    wanted = expected(sales)
    assert wanted["late"] and any(reason.startswith("lately") for _, reason, _ in wanted["refused"])
    for position in range(len(sales)):
        made = Selling(Engine.in_memory())
        await made.write(*sales)
        first = made.replica(entries_max=1)
        await first.begin()
        for _ in range(position):
            await first.turn()
        await first.checkpoint()
        second = await run_through(made.replica(entries_max=4))
        assert second.known is not None and second.known.register.stands.c == Position(position)
        assert await made.released() == wanted, position


async def test_a_value_that_is_late_for_some_of_its_windows_counts_in_the_others() -> None:
    made = Selling(Engine.in_memory())
    await made.write(Sale("a", 15, 1), Sale("b", 21, 1), Sale("a", 16, 2), Sale("b", 50, 1), Sale("a", 16, 4))
    await run_through(made.replica())
    found = await made.released()
    assert found["late"] == [Sale("a", 16, 4)]
    assert found["lately"] == [  # the one up to 20 has closed by b at 21, the one up to 30 has the value behind it
        *(Takings("a", 20, 1), Takings("a", 30, 3), Takings("b", 30, 1)),
        *(Takings("b", 40, 1),),
    ]


@pytest.mark.parametrize("ms", [1.5, True, "12", None, 1 << 60])
async def test_a_time_that_is_no_milliseconds_stops_the_pipeline_and_says_so(ms: Any) -> None:
    made = Selling(Engine.in_memory())
    given = Sale("a", 1, 1)
    replica = made.replica()
    object.__setattr__(cores_in(replica)["lately~time"]._operator, "function", lambda sale: ms)
    await made.write(given)
    with pytest.raises(OperatorFailed, match=r"operator lately~time fails .* give milliseconds since 1970"):
        await run_through(replica)


async def test_a_time_may_refuse_its_entry() -> None:
    made = Selling(Engine.in_memory())
    replica = made.replica()
    object.__setattr__(cores_in(replica)["lately~time"]._operator, "function", article_of)
    cores_in(replica)["total"]._key = lambda sale: "all"
    await made.write(Sale("?", 1, 1))
    await run_through(replica)
    assert [reason for _, reason, _ in (await made.released())["refused"]] == [
        "lately~time: PoisonMessage: nameless: which article?"
    ]


# Refused entries


def chosen(page: Page) -> bool:
    if page.text == "poison filter":
        raise PoisonMessage("bad", "no page")
    return True


def split(page: Page) -> Iterator[Word]:
    for text in page.text.split():
        yield Word(text)
        if text == "flat":
            raise PoisonMessage("bad", "flat")


def plain(word: Word) -> Word:
    if word.text == "map":
        raise PoisonMessage("bad", "map")
    return word


def keyed(word: Word) -> str:
    if word.text == "key":
        raise PoisonMessage("bad", "key")
    return word.text


def added(state: Count, word: Word, emit: Emit[Change]) -> None:
    state.n += 1
    emit(Change(word.text, state.n))
    if word.text == "reduce":
        raise PoisonMessage("bad", "reduce")


def refusing(engine: Engine, refused: OrderedLog[RefusedEntry] | None, version: int = 1) -> Pipeline:
    pages = OrderedLog("pages", engine, type=Page)
    made = Pipeline("index", source=pages, refused=refused, version=version)
    chain = made.map(made.flat_map(made.filter(source=pages)(chosen))(split))(plain)
    made.sink(made.reduce(chain, key=keyed, state=Count)(added), OrderedLog("changes", engine, type=Change))
    return made


def replica_of(pipeline: Pipeline, engine: Engine) -> PipelineReplica:
    return PipelineReplica(pipeline.plan().on(lambda log: log.place), place_of(engine))


async def test_every_operator_may_refuse_and_the_rest_of_its_entry_goes_on() -> None:
    engine = Engine.in_memory()
    log = OrderedLog("refused", engine, type=RefusedEntry)
    pages = OrderedLog("pages", engine, type=Page)
    texts = ("poison filter", "a flat", "b map c", "key reduce", "reduce c", "b")
    for number, text in enumerate(texts):
        await pages.append(Page(text), id=f"p{number}")
    replica = await run_through(replica_of(refusing(engine, log), engine))
    changes = [entry.value async for entry in OrderedLog("changes", engine, type=Change).read()]
    assert changes == [Change("b", 1), Change("c", 1), Change("c", 2), Change("b", 2)]
    names = ("chosen", "split", "plain", "added", "added")
    said = ("no page", "flat", "map", "key", "reduce")
    found = [entry.value async for entry in log.read()]
    assert [(each.input, each.position, each.id, each.reason) for each in found] == [
        ("pages", f"{n}.0", f"p{n}", f"{names[n]}: PoisonMessage: bad: {said[n]}") for n in range(5)
    ]
    assert [bytes(each.value) for each in found] == [b'{"text":"%b"}' % text.encode() for text in texts[:5]]
    states = states_of(cores_in(replica)["added"])
    assert states is not None and set(states.all()) == {"b", "c"}


@pytest.mark.parametrize("text", ["poison filter", "flat", "map", "key", "reduce"])
async def test_a_refusal_stops_the_pipeline_where_no_log_takes_it_until_it_is_given_one(text: str) -> None:
    engine = Engine.in_memory()
    without = refusing(engine, None)
    await without.source.log.append(Page(text), id="p")
    with pytest.raises(OperatorFailed, match=r"PoisonMessage: bad: .*refused=log"):
        await run_through(replica_of(without, engine))
    log = OrderedLog("refused", engine, type=RefusedEntry)
    await run_through(replica_of(refusing(engine, log, version=2), engine))
    assert [entry.value.id async for entry in log.read()] == ["p"]


async def test_a_sink_that_a_newer_version_adds_begins_at_the_checkpoint_that_stands() -> None:
    engine = Engine.in_memory()
    older, log = refusing(engine, None), OrderedLog("refused", engine, type=RefusedEntry)
    for number, text in enumerate(("a", "b")):
        await older.source.log.append(Page(text), id=f"p{number}")
        replica = await run_through(replica_of(older, engine))
        assert await replica.checkpoint()
    await older.source.log.append(Page("map"), id="p2")
    newer = replica_of(refusing(engine, log, version=2), engine)
    await newer.begin(again=True)  # at a checkpoint before the one that stands
    while await newer.turn():
        await newer.checkpoint()
    assert await run_through(replica_of(refusing(engine, log, version=2), engine))
    assert [entry.value.position async for entry in log.read()] == ["2.0"]
    assert [entry.value.word async for entry in OrderedLog("changes", engine, type=Change).read()] == ["a", "b"]


async def test_any_other_error_stops_the_pipeline_although_a_log_takes_what_is_refused() -> None:
    engine = Engine.in_memory()
    pages = OrderedLog("pages", engine, type=Page)
    made = Pipeline("index", source=pages, refused=OrderedLog("refused", engine, type=RefusedEntry))
    nameless = made.reduce(made.flat_map(source=pages)(words), key=lambda word: None, state=Count)(count)
    made.sink(nameless, OrderedLog("changes", engine, type=Change))
    await pages.append(Page("a"), id="p")
    with pytest.raises(OperatorFailed, match=r"operator count fails on the entry at 0\.0 .*no key") as raised:
        await run_through(replica_of(made, engine))
    assert "refused=" not in str(raised.value)


async def test_a_state_that_cannot_be_stored_refuses_no_entry() -> None:
    made = Selling(Engine.in_memory())
    await made.write(Sale("a", 1, 1), Sale("a", 2, 1))
    replica = made.replica()
    object.__setattr__(cores_in(replica)["total"]._operator, "function", without_box)
    with pytest.raises(OperatorFailed, match=r"at 1\.0 .*leave it a Value"):
        await run_through(replica)


def without_box(state: Any, sale: Sale, emit: Emit[Takings]) -> None:
    state.cents = 3


@pytest.mark.parametrize("kind", ["reduce", "window", "halved"])
async def test_a_state_that_cannot_be_encoded_stops_the_pipeline_and_says_whose(kind: str) -> None:
    engine = Engine.in_memory()
    pages = OrderedLog("pages", engine, type=Page)
    made = Pipeline("index", source=pages, refused=OrderedLog("refused", engine, type=RefusedEntry))
    if kind != "window":
        function = overwritten if kind == "reduce" else halved
        made.sink(made.reduce(source=pages, key=all_of, state=Count)(function), OrderedLog("c", engine, type=Change))
    else:
        wrong = made.map(source=pages, emits=Word)(plain_page)
        made.sink(made.window(wrong, key=all_of, size_s=1)(lately), OrderedLog("c", engine, type=Change))
    await pages.append(Page("a"), id="p")
    replica = await run_through(replica_of(made, engine))
    with pytest.raises(StateUnstorable, match=r"operator \w+: the state of key 'all' cannot be stored .*next version="):
        await replica.checkpoint()


def all_of(value: Any) -> str:
    return "all"


def overwritten(state: Any, page: Page, emit: Emit[Change]) -> None:
    state.n = object()


def halved(state: Any, page: Page, emit: Emit[Change]) -> None:
    state.n = 0.5  # an int's field


def plain_page(page: Page) -> Any:
    return page


# What a refused record had changed


@dataclass
class Boxes:
    """A state of all kinds of fields."""

    count: int = 0
    plain: list[int] = field(default_factory=list)
    value: Value[int] = field(default_factory=lambda: Value(0))
    list_value: Value[list[int]] = field(default_factory=lambda: Value([]))
    map: MapState[str, int] = field(default_factory=MapState)
    list_map: MapState[str, list[int]] = field(default_factory=MapState)
    row: ListState[int] = field(default_factory=ListState)
    list_list: ListState[list[int]] = field(default_factory=ListState)


class Struct(msgspec.Struct):
    """A state without boxes."""

    count: int = 0
    plain: list[int] = []


class Model(pydantic.BaseModel):
    """Another."""

    count: int = 0
    plain: list[int] = []


CHANGES: list[Callable[[Any, int], object]] = [
    lambda state, n: setattr(state, "count", n),
    lambda state, n: state.plain.append(n),
    lambda state, n: setattr(state.value, "value", n),
    lambda state, n: state.list_value.value.append(n),
    lambda state, n: setattr(state.list_value, "value", [n]),
    lambda state, n: state.map.__setitem__(f"k{n % 3}", n),
    lambda state, n: state.map.pop(f"k{n % 3}", None),
    lambda state, n: state.list_map.setdefault(f"k{n % 3}", []).append(n),
    lambda state, n: [list.append(each, n) for each in state.list_map.values()],
    lambda state, n: state.list_map.clear(),
    lambda state, n: state.row.append(n),
    lambda state, n: state.row.insert(n % 5 - 2, n),
    lambda state, n: state.row.__setitem__(slice(0, n % 3), [n, n]),
    lambda state, n: state.row and state.row.__setitem__(-1, n),
    lambda state, n: state.row and state.row.pop(n % len(state.row)),
    lambda state, n: state.row.__delitem__(slice(1, None)),
    lambda state, n: state.list_list.append([n]),
    lambda state, n: [each.append(n) for each in state.list_list],
    lambda state, n: state.list_list.insert(0, [n]),
    lambda state, n: state.list_list and state.list_list.pop(0),
    lambda state, n: [each.append(n) for each in state.list_list[-2:]],
    lambda state, n: setattr(state, "map", MapState({"new": n})),
    lambda state, n: state.__setattr__("row", ListState([n])) or state.row.append(n),
]


@pytest.mark.parametrize("seed", range(40))
def test_a_refused_record_leaves_its_state_as_it_was(seed: int) -> None:
    draw, fields = random.Random(seed), fields_of(Boxes)
    assert fields is not None
    undo, state = Undo(Boxes, fields.names), Boxes()
    for _ in range(30):
        before = fields.encode(state)
        undo.begin(state)
        for _ in range(draw.randrange(1, 5)):
            draw.choice(CHANGES)(state, draw.randrange(99))
        if draw.random() < 0.6:
            assert undo.undo()
            assert fields.encode(state) == before
        elif draw.random() < 0.2:
            state = fields.decode(fields.encode(state))


@pytest.mark.parametrize("kind", [Struct, Model])
def test_a_state_without_boxes_is_put_back_as_well(kind: type[Any]) -> None:
    undo, state = Undo(kind, ("count", "plain")), kind(plain=[1])
    undo.begin(state)
    state.count, state.plain[0] = 3, 4
    assert undo.undo()
    assert state == kind(plain=[1])
    undo.begin(None)
    assert not undo.undo()
