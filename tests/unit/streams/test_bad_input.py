"""What is wrong is refused, by an error that says what to do; nothing is skipped and nothing half written."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.engine import Engine
from outbox.engine.limits import EngineLimits
from outbox.errors import CorruptRecord, FormatTooNew, NotRegistrable, PoisonMessage, Refused, Throttled, TooLarge
from outbox.ports import DocumentKey, Replace
from outbox.retries import Retries
from outbox.streams import HandlerFailed, Ingest, Inputs, OrderedLog, Position, Processor, RefusedEntry, Skip, Step
from outbox.streams.replica import Progress
from tests.unit.messages import Page, Reading
from tests.unit.streams.making import ANY_AGE, Alarm, Total, add, fill, made, put_raw, values

AT_ONCE = Retries(limit=2, delays_s=(0.0,))


@dataclass
class Dated(Reading):
    day: str = "2026-01-01"


def processor(engine: Engine, handler: Callable[..., Any], **options: Any) -> Processor[Any]:
    """A processor `sums` of the log `numbers`."""
    defaults = {
        "state": Total,
        "register": engine,
        "inputs": {"numbers": made("numbers", engine, int)},
        "outputs": {"out": made("out", engine, int)},
        "retries": AT_ONCE,
    }
    return Processor("sums", handler, **{**defaults, **options})


# Appends


@pytest.mark.parametrize(
    ("given", "id", "cure"),
    [
        ([], "a", "append at least one"),
        ([1], "", "a text that is not empty"),
        ([1], None, "a text that is not empty"),
        ([1], "é" * 2_049, "over 4096 bytes; give a shorter one"),
        ([1] * 1_001, "a", "append them in several cells"),
    ],
)
async def test_an_append_that_cannot_be_is_refused_with_the_cure(
    engine: Engine, given: list[int], id: Any, cure: str
) -> None:
    log = made("numbers", engine, int)
    with pytest.raises(Refused, match=cure):
        await log.extend(given, id=id)
    assert await values(log) == []


async def test_the_longest_id_and_the_most_entries_are_taken(engine: Engine) -> None:
    log = made("numbers", engine, int)
    await log.extend(list(range(1_000)), id="é" * 2_048)
    assert await values(log) == list(range(1_000))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (Reading, Reading("a", float("nan"))),
        (Reading, Reading("a", float("-inf"))),
        (Reading, Reading("a", "hot")),  # type: ignore[arg-type]  # that is the point
        (Reading, Reading(None, 1.0)),  # type: ignore[arg-type]  # that too
        (Reading, Alarm("hot")),
        (Reading, Dated("a", 1.0)),  # its day would be lost
        (Reading | Alarm, Dated("a", 1.0)),
        (Reading, {"sensor": "a", "degrees": 1.0}),
        (Reading | Alarm, 5),
        (Reading | Alarm, Alarm(5)),  # type: ignore[arg-type]  # that too
        (float, float("nan")),
        (float | None, float("inf")),
        (int, True),
        (int, 1.5),
        (int, None),
        (str, b"ab"),
        (str, "\ud800"),
        (list[int], [1, None]),
    ],
    ids=str,
)
async def test_an_entry_that_would_not_be_read_back_is_refused(engine: Engine, kind: Any, given: Any) -> None:
    log = made("entries", engine, kind)
    with pytest.raises(PoisonMessage, match="log 'entries'"):
        await log.append(given, id="a")
    assert await values(log) == []


@pytest.mark.parametrize("name", ["", "a/b", ".a", "-", "a b", "é", "x" * 129, "a\n", None, 7])
def test_a_name_that_cannot_be_part_of_a_partition_is_refused(name: Any) -> None:
    with pytest.raises(NotRegistrable, match="a name has 1 to 128 letters"):
        OrderedLog(name, Engine.in_memory(), type=int)


def test_what_is_no_place_is_refused() -> None:
    with pytest.raises(NotRegistrable, match="give an Engine"):
        OrderedLog("a", sqlite3, type=int)


async def test_a_margin_that_no_append_can_keep_is_refused(engine: Engine) -> None:
    with pytest.raises(NotRegistrable, match="give 10 s or more"):
        OrderedLog("a", engine, type=int, margin=timedelta(seconds=9))


@pytest.mark.parametrize("kind", [Engine, set[Engine], object()], ids=["class", "set", "object"])
def test_a_type_that_json_cannot_hold_is_refused(kind: Any) -> None:
    with pytest.raises(NotRegistrable, match="use a dataclass"):
        OrderedLog("a", Engine.in_memory(), type=kind)


@pytest.mark.parametrize("shards", [{"writers": 0}, {"readers": 257}, {"readers": 2}])
def test_shards_that_cannot_be_are_refused(shards: dict[str, int]) -> None:
    with pytest.raises(NotRegistrable, match=r"1 to 256 each|partition="):
        OrderedLog("a", Engine.in_memory(), type=int, **shards)  # type: ignore[call-overload]  # the wrong numbers


def test_a_shard_that_a_log_does_not_have_is_refused() -> None:
    log = made("a", Engine.in_memory(), int, writers=2)
    for call in (lambda: log.writer(2), lambda: log.writer(-1), lambda: log.reader(1)):
        with pytest.raises(NotRegistrable, match="log a has"):
            call()


# Other logs on the name


async def test_a_log_of_another_type_on_the_name_is_refused_whoever_was_first(engine: Engine) -> None:
    await made("a", engine, int).append(1, id="a")
    other = made("a", engine, str)
    for call in (
        *(lambda: other.append("x", id="b"), lambda: other.append("x", id="b", since=Position(0))),
        *(lambda: values(other), lambda: other.register("audit"), lambda: other.end()),
    ):
        with pytest.raises(
            NotRegistrable, match="holds entries of int, not of str; give type=int, or the new log anoth"
        ):
            await call()
    assert await values(made("a", engine, int)) == [1]


@pytest.mark.parametrize("was", [(1, 1), (2, 1), (1, 2), (3, 3)])
@pytest.mark.parametrize("shards", [(1, 1), (2, 1), (1, 2), (2, 2), (3, 3)])
async def test_a_log_of_other_shards_on_the_name_is_refused_in_each_of_its_rows(
    engine: Engine, was: tuple[int, int], shards: tuple[int, int]
) -> None:
    """A row that only the new number has would be written and read by processes that never meet the old ones."""

    def opened(writers: int, readers: int) -> OrderedLog[int]:
        return made("a", engine, int, writers=writers, readers=readers, partition=lambda value: value)

    first = opened(*was)
    await first.writer(was[0] - 1).append(1, id="a")  # not in the first row, where there are several
    other = opened(*shards)
    calls: list[Callable[[], Awaitable[Any]]] = [other.status, lambda: other.reader(0).register("audit")]
    calls += [partial(opened(*shards).writer(writer).append, 2, id="b") for writer in range(shards[0])]
    calls += [partial(values, opened(*shards).reader(reader)) for reader in range(shards[1])]
    for call in calls:
        if was == shards:
            await call()
            continue
        with pytest.raises(NotRegistrable, match=f"of {was[0]}x{was[1]} shards .* not {shards[0]}x{shards[1]}"):
            await call()
    found = await values(opened(*was).reader(first.reader_of(1)))
    assert 1 in found and (was == shards or found == [1])


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"no json", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 100_000),
        *(
            b'{"id":"a"}',
            b'{"id":"a","count":2,"v":[1]}',
            b'{"id":"a","count":1,"v":[1],"types":["a","b"]}',
            b'{"id":7}',
        ),
    ],
    ids=lambda body: body[:30],
)
async def test_a_document_that_is_no_cell_is_named_and_never_skipped(engine: Engine, body: bytes) -> None:
    log = made("numbers", engine, int)
    await log.append(1, id="a")
    await put_raw(engine.store(), "log/numbers/0.0/0", "0000000001", body)
    at = Position(1)
    for call in (
        *(lambda: values(log), lambda: log.append(2, id="b"), lambda: log.append(2, id="b", since=at)),
        *(lambda: made("numbers", engine, int).end(), lambda: processor(engine, add).run_until_idle()),
    ):
        with pytest.raises(CorruptRecord, match=r"log/numbers/0\.0/0/0000000001 is not a cell .*restore the document"):
            await call()


async def test_a_floor_or_register_that_is_none_is_named(engine: Engine) -> None:
    await put_raw(engine.store(), "log/numbers/0.0", "floor", b"[1]")
    with pytest.raises(CorruptRecord, match=r"log/numbers/0\.0/floor is not the floor .* from a backup"):
        await made("numbers", engine, int).append(1, id="a")
    await put_raw(engine.store(), "processor/sums", "register", b"7")
    with pytest.raises(CorruptRecord, match=r"processor/sums/register is not .* from a backup"):
        await processor(engine, add).run_until_idle()


async def test_an_entry_of_another_shape_is_named(engine: Engine) -> None:
    await made("numbers", engine, int).append(1, id="a")
    cell = await engine.store().read(DocumentKey("log/numbers/0.0/0", "0000000000"))
    assert cell is not None
    await engine.store().write([Replace(cell.key, cell.body.replace(b'"v":[1]', b'"v":["x"]'), cell.version)])
    with pytest.raises(CorruptRecord, match=r"log/numbers/0\.0/0: an entry is no int"):
        await values(made("numbers", engine, int))


# A full engine


async def test_a_full_engine_refuses_appends_names_trim_and_takes_more_after_it() -> None:
    async with Engine.in_memory(limits=EngineLimits(memory_bytes_max=200_000)) as engine:
        log = made("texts", engine, str)
        with pytest.raises(Throttled, match="all that it may; trim ordered logs or raise memory_bytes_max"):
            for n in range(100):
                await log.append("x" * 10_000, id=f"{n}")
        before = await log.end()
        assert await log.trim(min_age=ANY_AGE) == before.index
        assert await log.append("more", id="more") == before
        assert await values(log) == ["more"]


# Processors that cannot be


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"inputs": {}}, "give inputs="),
        ({"inputs": {"numbers": 5}}, "give an OrderedLog"),
        ({"inputs": {"a/b": "log"}}, "a name has"),
        ({"outputs": {"out": 5}}, "give a log, or a backend's queue"),
        ({"outputs": {"refused~": "log"}}, "a name has"),
        ({"batch_max": 0}, "batch_max=0: 1 to 1000"),
        ({"batch_max": 1_001}, "1 to 1000"),
        ({"on_error": "refuse"}, "go together"),
        ({"refused": "log"}, "go together"),
        ({"state": int}, "dataclass"),
        ({"register": 5}, "give an Engine"),
    ],
    ids=str,
)
def test_a_processor_that_cannot_be_is_refused_when_it_is_made(options: dict[str, Any], cure: str) -> None:
    with pytest.raises(NotRegistrable, match=cure):
        processor(Engine.in_memory(), add, **options)


async def test_sharded_logs_are_given_by_shard(engine: Engine) -> None:
    log = made("wide", engine, int, writers=2, readers=2, partition=lambda value: value)
    with pytest.raises(NotRegistrable, match=r"\.reader\(n\)"):
        processor(engine, add, inputs={"numbers": log})
    with pytest.raises(NotRegistrable, match=r"\.writer\(n\)"):
        processor(engine, add, outputs={"out": log})


async def test_a_register_of_newer_code_or_schema_stops_the_older(engine: Engine) -> None:
    await fill(made("numbers", engine, int), 1)
    for newer in ({"version": 2}, {"version": 2, "state_version": 2, "upcasts": {1: dict}}):
        await processor(engine, add, **newer).run_until_idle()
        with pytest.raises(FormatTooNew, match=r"processor sums runs as version 2.* deploy the newer"):
            await processor(engine, add).run_until_idle()
        await made("numbers", engine, int).append(2, id=f"{newer}")
    assert await values(made("out", engine, int)) == [1, 3]


async def test_the_same_name_with_other_code_needs_a_version(engine: Engine) -> None:
    def another(state: Total, inputs: Inputs, step: Step) -> None:
        step.emit("out", 100)

    await fill(made("numbers", engine, int), 1)
    await processor(engine, add).run_until_idle()
    with pytest.raises(NotRegistrable, match="give it another name, or version=2 if it goes on"):
        await processor(engine, another).run_until_idle()
    assert await values(made("out", engine, int)) == [1]


async def test_an_input_that_is_renamed_needs_a_version(engine: Engine) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1)
    await processor(engine, add).run_until_idle()
    with pytest.raises(NotRegistrable, match=r"reads numbers by its register, .* name it as before, or give version=2"):
        await processor(engine, add, inputs={"digits": log}).run_until_idle()
    await processor(engine, add, inputs={"digits": log}, version=2).run_until_idle()
    assert await values(made("out", engine, int)) == [1], "the log goes on where it was under its earlier name"
    await fill(log, 1, 2)
    await processor(engine, add, inputs={"digits": log}, version=2).run_until_idle()
    assert await values(made("out", engine, int)) == [1, 3] and await log.trim() == 2


async def test_new_code_with_another_name_for_an_input_begins_where_old_code_ends(engine: Engine) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1)
    old = processor(engine, add).replica()
    while await old.step() is not Progress.IDLE:
        pass
    new = processor(engine, add, inputs={"digits": log}, version=2).replica()
    await log.append(2, id="two")
    await new.look_or_begin()
    while await old.step() is not Progress.IDLE:  # the old one goes on meanwhile
        pass
    for _ in range(4):
        await new.step()
    assert await values(made("out", engine, int)) == [1, 3]


async def test_inputs_that_change_their_names_go_on_where_they_were(engine: Engine) -> None:
    one, two, three = (made(name, engine, int) for name in ("one", "two", "three"))
    for log in (one, two, three):
        await fill(log, 1)
    await processor(engine, add, inputs={"a": one, "b": two}).run_until_idle()
    await processor(engine, add, inputs={"a": two, "b": three, "c": one}, version=2).run_until_idle()
    assert await values(made("out", engine, int)) == [1, 2, 3]


async def test_an_output_that_is_owed_entries_cannot_be_dropped(engine: Engine) -> None:
    await fill(made("numbers", engine, int), 1)
    await processor(engine, add).run_until_idle(steps_max=1)  # handled, not written
    with pytest.raises(NotRegistrable, match=r"has yet to write to out, .* declare it until that is written"):
        await processor(engine, add, outputs={}).run_until_idle()
    await processor(engine, add).run_until_idle()
    assert await values(made("out", engine, int)) == [1]


# Handlers that fail


def fails_at_two(state: Total, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        if entry.value == 2:
            raise ValueError("two is too much")
        state.n += entry.value
        step.emit("out", state.n)


async def test_a_handler_that_raises_stops_the_processor_and_loses_nothing(engine: Engine) -> None:
    await fill(made("numbers", engine, int), 1, 2, 3)
    with pytest.raises(HandlerFailed, match=r"sums fails at numbers 1\.0 \(ValueError: two is too much\); mend the"):
        async with processor(engine, fails_at_two).run() as running:
            await running.wait_stopped()
    assert await values(made("out", engine, int)) == [1]
    await processor(engine, add, version=2).run_until_idle()
    assert await values(made("out", engine, int)) == [1, 3, 6]


async def test_a_refused_entry_goes_to_its_log_and_the_rest_goes_on(engine: Engine) -> None:
    await fill(made("numbers", engine, int), 1, 2, 3)
    refused = made("refused", engine, RefusedEntry)
    await processor(engine, fails_at_two, on_error="refuse", refused=refused).run_until_idle()
    assert await values(made("out", engine, int)) == [1, 4]
    assert await values(refused) == [
        RefusedEntry("numbers", "1.0", "numbers-1", "ValueError: two is too much", msgspec.Raw(b"2"))
    ]


async def test_one_entry_of_a_batch_is_refused_without_the_others(engine: Engine) -> None:
    await made("numbers", engine, int).extend([1, 2, 3, 2, 4], id="batch")
    refused = made("refused", engine, RefusedEntry)
    await processor(engine, fails_at_two, on_error="refuse", refused=refused).run_until_idle()
    assert await values(made("out", engine, int)) == [1, 4, 8]
    assert [entry.position for entry in await values(refused)] == ["0.1", "0.3"]


def emits_to_nowhere(state: Total, inputs: Inputs, step: Step) -> None:
    step.emit("elsewhere", 1)


def emits_too_much(state: Total, inputs: Inputs, step: Step) -> None:
    for n in range(1_001):
        step.emit("out", n)


def emits_another_type(state: Total, inputs: Inputs, step: Step) -> None:
    step.emit("out", "text")


def keeps_another_type(state: Any, inputs: Inputs, step: Step) -> None:
    state.n = "text"


def keeps_nan(state: Any, inputs: Inputs, step: Step) -> None:
    step.save({"n": float("nan")})


def keeps_too_much(state: Any, inputs: Inputs, step: Step) -> None:
    step.save({"n": 1, "ballast": "x" * (2 << 20)})


async def never_ends(state: Total, inputs: Inputs, step: Step) -> None:
    await asyncio.Event().wait()


def emits_the_reserved(state: Total, inputs: Inputs, step: Step) -> None:
    step.emit("refused~", 1)


@pytest.mark.parametrize(
    ("handler", "cure"),
    [
        (emits_to_nowhere, "has no output 'elsewhere', it has out; declare it"),
        (emits_too_much, "at most 1000 entries to 'out'; handle fewer at once: batch_max="),
        (emits_another_type, "cannot be stored as int"),
        (emits_the_reserved, "has no output 'refused~'"),
        (keeps_another_type, "Expected `int`, got `str`"),
        (keeps_nan, "keep numbers finite"),
        (keeps_too_much, "keep a smaller state, or handle fewer entries at once"),
        (never_ends, r"did not end in 0\.01 s; wait for less, or raise handler_s="),
    ],
)
async def test_what_a_step_must_not_do_fails_it_and_leaves_no_trace(engine: Engine, handler: Any, cure: str) -> None:
    await fill(made("numbers", engine, int), 1)
    with pytest.raises(HandlerFailed, match=cure):
        await processor(engine, handler, handler_s=0.01).run_until_idle()
    assert await values(made("out", engine, int)) == []
    await processor(engine, add, version=2).run_until_idle()
    assert await values(made("out", engine, int)) == [1]


async def test_a_batch_that_makes_too_much_is_tried_again_one_by_one(engine: Engine) -> None:
    def copies(state: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            for _ in range(600):
                step.emit("out", entry.value)

    await fill(made("numbers", engine, int), 1, 2, 3)
    await processor(engine, copies).run_until_idle()
    assert await values(made("out", engine, int)) == [1] * 600 + [2] * 600 + [3] * 600


async def test_a_step_whose_output_cannot_be_stored_fails_and_is_not_committed(engine: Engine) -> None:
    def large(state: Total, inputs: Inputs, step: Step) -> None:
        step.emit("out", "x" * 1_200_000)

    await fill(made("numbers", engine, int), 1)
    out = made("texts", engine.store(), str)  # without blobs, for what is over 1 MB
    with pytest.raises(HandlerFailed, match="blob"):
        await processor(engine, large, outputs={"out": out}).run_until_idle(seconds=0.1)


async def test_a_handler_that_fails_is_logged_with_its_error(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    await fill(made("numbers", engine, int), 2)
    with caplog.at_level(logging.WARNING), pytest.raises(HandlerFailed):
        await processor(engine, fails_at_two).run_until_idle()
    [record] = [vars(each) for each in caplog.records]
    assert (record["processor"], record["failures"], record["error"]) == ("sums", 1, "ValueError: two is too much")


async def test_a_failure_is_counted_in_the_register_over_restarts(engine: Engine) -> None:
    await fill(made("numbers", engine, int), 2)
    three = Retries(limit=3, delays_s=(0.0,))
    for failures in (1, 2):
        await processor(engine, fails_at_two, retries=three).run_until_idle(steps_max=1)
        assert (await processor(engine, fails_at_two).status()).failures == failures
    with pytest.raises(HandlerFailed):
        await processor(engine, fails_at_two, retries=three).run_until_idle(steps_max=1)


async def test_a_skip_in_place_of_a_value_is_no_entry(engine: Engine) -> None:
    def skips(state: Total, inputs: Inputs, step: Step) -> None:
        step.emit("out", Skip)
        step.emit("out", Skip())

    await fill(made("numbers", engine, int), 1)
    await processor(engine, skips).run_until_idle()
    assert await made("out", engine, int).end() == Position(0)


# Ingest


def test_an_ingest_over_a_store_of_item_scope_is_refused_with_the_cure() -> None:
    engine = Engine.in_memory()
    with pytest.raises(NotRegistrable, match=r"give a backend of partition scope .* the log may be anywhere"):
        Ingest("pages", queue="pages", type=Page, source=NarrowEngine(engine, "item"), log=made("p", engine, Page))


@pytest.mark.parametrize(("name", "shards"), [("a/b", 1), ("pages", 0), ("pages", 257)])
def test_an_ingest_that_cannot_be_is_refused(name: str, shards: int) -> None:
    engine = Engine.in_memory()
    with pytest.raises(NotRegistrable, match="1 to "):
        Ingest(name, queue="pages", type=Page, source=engine, log=made("p", engine, Page), shards=shards)


async def test_errors_of_a_full_cell_name_the_limit(engine: Engine) -> None:
    log = made("texts", engine, str)
    with pytest.raises(TooLarge, match="append fewer at once"):
        await log.extend(["x" * (1 << 20)] * 65, id="a")
