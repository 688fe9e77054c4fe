"""A handler that fails: what fails alone is what counts, and what is refused, whatever other rows have meanwhile."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.errors import NotRegistrable, TooLarge
from outbox.ports import Replace
from outbox.retries import Retries
from outbox.streams import HandlerFailed, Inputs, OrderedLog, Processor, RefusedEntry, Step
from outbox.streams.cells import Position
from outbox.streams.register import Failed, Out, Register
from outbox.streams.replica import Progress, Replica
from tests.unit.streams.making import Total, fill, made, values

TWICE = Retries(limit=2, delays_s=())


def refused_log(engine: Engine) -> OrderedLog[RefusedEntry]:
    return OrderedLog("refused", engine, type=RefusedEntry)


def processor(engine: Engine, handler: Any, inputs: dict[str, Any], **options: Any) -> Processor[Any]:
    """A processor `p` that refuses at the second failure."""
    given: dict[str, Any] = {"on_error": "refuse", "refused": refused_log(engine), "retries": TWICE, "outputs": {}}
    given |= {"state": Total, "register": engine}
    return Processor("p", handler, inputs=inputs, **{**given, **options})


def stopping(engine: Engine, handler: Any, inputs: dict[str, Any], **options: Any) -> Processor[Any]:
    """A processor `p` that stops."""
    return processor(engine, handler, inputs, **{"on_error": "stop", "refused": None} | options)


async def refused(engine: Engine) -> list[str]:
    """The values that were refused."""
    return [bytes(each.value).decode() for each in await values(refused_log(engine))]


def no_negative(total: Total, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        if entry.value < 0:
            raise ValueError("not below zero")
        total.n += 1


async def register_of(replica: Replica) -> Register:
    kept = await replica.register.read()
    assert kept is not None
    return kept.register


async def steps(replica: Replica, count_max: int = 100) -> int:
    """Step until there is nothing to do; how many steps that took."""
    for count in range(count_max):
        if await replica.step() is Progress.IDLE:
            return count
    raise AssertionError(f"it goes on after {count_max} steps")


# What counts


@pytest.mark.parametrize("name", ["a", "z"])
async def test_an_entry_that_fails_is_refused_while_another_input_has_traffic(engine: Engine, name: str) -> None:
    given, busy = made("g", engine, int), made("b", engine, int)
    await fill(given, -1, 7)
    replica = processor(engine, no_negative, {name: given, "busy": busy}).replica()
    for n in range(12):
        await busy.append(n, id=f"busy{n}")
        await replica.step()
    assert await refused(engine) == ["-1"]
    await steps(replica)
    assert (await register_of(replica)).failures == 0
    assert msgspec.json.decode(bytes((await register_of(replica)).state), type=Total).n == 13


@pytest.mark.parametrize(("stale_count", "next_size"), [(2, 1), (3, 2)])
async def test_after_a_failure_reads_that_find_nothing_are_made_three_times(
    engine: Engine, stale_count: int, next_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be stale; if none finds what had failed, the log was restored, and what there is is read."""
    sizes, logs = list[int](), {name: made(name, engine, int) for name in "ab"}

    def handler(total: Total, inputs: Inputs, step: Step) -> None:
        sizes.append(len(inputs))
        no_negative(total, inputs, step)

    for log in logs.values():
        await fill(log, -1)
    replica = stopping(engine, handler, logs).replica()
    while not sizes:
        await replica.step()
    left = stale_count * len(logs)

    async def stale(read: Any, row: Any, at: Position, *given: Any) -> Any:
        nonlocal left
        left -= 1
        return ([], at) if left >= 0 else await read(row, at, *given)

    for ahead in replica._ahead.values():
        monkeypatch.setattr(ahead, "entries", partial(stale, ahead.entries))
    await replica.step()
    assert sizes == [2, next_size]


async def test_an_entry_that_fails_stops_the_processor_while_another_row_has_traffic(engine: Engine) -> None:
    log: OrderedLog[int] = OrderedLog("in", engine, type=int, writers=2)
    await log.writer(1).append(-1, id="bad")
    replica = stopping(engine, no_negative, {"in": log.reader(0)}).replica()
    with pytest.raises(HandlerFailed, match=r"fails at in 0\.0 .*not below zero"):
        for n in range(12):
            await log.writer(0).append(n, id=f"busy{n}")
            await replica.step()


async def test_an_entry_that_fails_once_in_between_is_not_refused(engine: Engine) -> None:
    runs: list[int] = []

    def handler(total: Total, inputs: Inputs, step: Step) -> None:
        no_negative(total, inputs, step)
        if len(inputs) == 1 and (entry := next(iter(inputs))).value == 5:
            runs.append(entry.value)
            if len(runs) == 1:
                raise ConnectionError("not now")

    first, second = made("a", engine, int), made("b", engine, int)
    await fill(first, 5)
    await fill(second, -1)
    await steps(processor(engine, handler, {"a": first, "b": second}).replica())
    assert await refused(engine) == ["-1"] and len(runs) == 2


async def test_two_entries_that_fail_are_each_refused_after_their_own_failures(engine: Engine) -> None:
    tries: list[int] = []

    def handler(total: Total, inputs: Inputs, step: Step) -> None:
        tries.extend(entry.value for entry in inputs if len(inputs) == 1)
        no_negative(total, inputs, step)

    first, second = made("a", engine, int), made("b", engine, int)
    await fill(first, 1, -2, 3)
    await fill(second, -4, 5)
    await steps(processor(engine, handler, {"a": first, "b": second}, retries=Retries(3, ())).replica())
    assert sorted(await refused(engine)) == ["-2", "-4"]
    assert (tries.count(-2), tries.count(-4)) == (3, 3)


async def test_a_note_ends_within_a_cell_of_which_not_all_was_read(engine: Engine) -> None:
    log = made("in", engine, int)
    await log.extend([1, -2, 3, 4, 5, 6], id="all")
    replica = processor(engine, no_negative, {"in": log}, batch_max=4).replica()
    assert await replica.step() is Progress.WON
    failed = (await register_of(replica)).failed
    assert failed == Failed({"in": Position(0, 4)}, most=2, waits=1)
    cursors = []
    while (await replica.step()) is Progress.WON:
        cursors.append((await register_of(replica)).cursors["in"])
    assert cursors.index(Position(0, 4)) < cursors.index(Position(1)) and Position(0, 3) in cursors
    assert await refused(engine) == ["-2"] and (await register_of(replica)).failed is None


# What it costs


async def test_a_large_batch_that_fails_once_is_gone_through_in_few_steps(engine: Engine) -> None:
    failed: list[int] = []

    def handler(total: Total, inputs: Inputs, step: Step) -> None:
        if not failed:
            failed.append(len(inputs))
            raise ConnectionError("not now")
        total.n += len(inputs)

    log = made("in", engine, int)
    await log.extend(list(range(1_000)), id="all")
    replica = processor(engine, handler, {"in": log}, batch_max=1_000).replica()
    assert await steps(replica) <= 12 and failed == [1_000]
    assert msgspec.json.decode(bytes((await register_of(replica)).state), type=Total).n == 1_000
    assert await refused(engine) == []


async def test_a_batch_that_is_too_large_is_not_tried_again_at_the_same_size(engine: Engine) -> None:
    sizes: list[int] = []

    def handler(total: Total, inputs: Inputs, step: Step) -> None:
        if len(inputs) > 3:
            sizes.append(len(inputs))
            raise ValueError("too much at once")

    log = made("in", engine, int)
    await log.extend(list(range(64)), id="all")
    assert await steps(processor(engine, handler, {"in": log}).replica()) < 40
    assert sizes == sorted(set(sizes), reverse=True) and await refused(engine) == []


async def test_a_register_without_a_failure_is_as_large_as_before(engine: Engine) -> None:
    log = made("in", engine, int)
    await fill(log, 1, 2)
    replica = stopping(engine, no_negative, {"in": log}).replica()
    await steps(replica)
    document = await engine.store().read(replica.register.key)
    assert document is not None and b'"fail' not in document.body


# Other versions of the code


class OlderRegister(msgspec.Struct, frozen=True, omit_defaults=True):
    """A register as code without the note has it."""

    serial: int = 0
    nonce: str = ""
    code: str = ""
    version: int = 1
    state: msgspec.Raw = msgspec.Raw(b"null")
    schema: int = 1
    now: int = 0
    cursors: dict[str, Position] = {}
    since: dict[str, int] = {}
    outs: list[Out] = []
    wake: int = 0
    failures: int = 0
    reads: dict[str, str] = {}
    writes: dict[str, str] = {}


async def rewritten(engine: Engine, replica: Replica) -> None:
    """Swap the register as code without the note does: that drops it."""
    document = await engine.store().read(replica.register.key)
    assert document is not None
    known = msgspec.json.decode(document.body, type=OlderRegister)
    body = msgspec.json.encode(msgspec.structs.replace(known, serial=known.serial + 1))
    await engine.store().write([Replace(document.key, body, document.version)])
    replica.known = None


GOLDEN = (
    b'{"serial":7,"nonce":"n","code":"m.f","state":{"n":3},"now":5,"cursors":{"in":[4,1]},"since":{"out":2},'
    b'"outs":[{"to":"out","v":[1]}],"failures":2,"reads":{"in":"log/in/0.0"},"writes":{"out":"log/out/0.0"}}'
)


def test_a_register_of_older_code_is_read_and_written_as_it_was() -> None:
    register = msgspec.json.decode(GOLDEN, type=Register)
    assert (register.failures, register.failed) == (2, None)
    assert msgspec.json.encode(register) == GOLDEN


def test_older_code_reads_a_register_with_a_note() -> None:
    failed = Failed({"in": Position(5)}, {"in": 1}, take=4, most=8, waits=1, timer=True)
    noted = msgspec.structs.replace(msgspec.json.decode(GOLDEN, type=Register), failed=failed)
    older = msgspec.json.decode(msgspec.json.encode(noted), type=OlderRegister)
    assert (older.failures, older.cursors) == (2, {"in": Position(4, 1)})
    assert msgspec.json.decode(msgspec.json.encode(noted), type=Register) == noted


@pytest.mark.parametrize("every", [2, 3])
async def test_a_note_that_older_code_drops_loses_nothing_and_doubles_nothing(engine: Engine, every: int) -> None:
    log = made("in", engine, int)
    await fill(log, 1, 2, -3, 4)
    replica = processor(engine, no_negative, {"in": log}).replica()
    for number in range(24):
        await replica.step()
        if number % every == 1 and number < 12:
            await rewritten(engine, replica)
    assert await refused(engine) == ["-3"]
    assert msgspec.json.decode(bytes((await register_of(replica)).state), type=Total).n == 3


async def test_code_of_a_higher_version_counts_anew(engine: Engine) -> None:
    log = made("in", engine, int)
    await log.append(-3, id="bad")
    for version in (1, 2):
        replica = stopping(engine, no_negative, {"in": log}, version=version).replica()
        await replica.step()
        assert ((await register_of(replica)).failures, (await register_of(replica)).version) == (1, version)
        with pytest.raises(HandlerFailed):
            await replica.step()


# Pauses


async def test_only_a_step_that_fails_is_followed_by_a_pause(engine: Engine) -> None:
    log = made("in", engine, int)
    await log.extend([*range(20), -1, *range(20)], id="all")
    began_s = time.monotonic()
    failures: list[int] = []

    def handler(total: Total, inputs: Inputs, step: Step) -> None:
        failures.append(1)
        no_negative(total, inputs, step)
        failures.pop()

    await processor(engine, handler, {"in": log}, retries=Retries(2, (0.05,))).run_until_idle()
    assert await refused(engine) == ["-1"]
    assert 0.05 * (len(failures) - 1) <= time.monotonic() - began_s < 0.05 * len(failures) + 0.5


async def test_no_replica_tries_again_before_the_delay(engine: Engine) -> None:
    times: list[float] = []

    def handler(total: Total, inputs: Inputs, step: Step) -> None:
        times.append(time.monotonic())
        raise ValueError("never")

    log = made("in", engine, int)
    await fill(log, 1)
    given = stopping(engine, handler, {"in": log}, retries=Retries(4, (0.25,)), poll_s_max=0.02)
    with pytest.raises(HandlerFailed):
        async with given.run(replicas=3) as running:
            await asyncio.wait_for(running.wait_stopped(), 10)
    rounds = [b - a for a, b in pairwise(times)]
    assert sum(gap > 0.2 for gap in rounds) == 3, rounds
    assert sum(gap <= 0.2 for gap in rounds) <= 8, rounds  # those that tried at the same time


async def test_a_pause_ends_when_another_replica_goes_on(engine: Engine) -> None:
    may = False

    def handler(total: Total, inputs: Inputs, step: Step) -> None:
        if not may:
            failed.set()
            raise ValueError("not yet")
        total.n += len(inputs)
        if total.n == 2:
            done.set()

    log = made("in", engine, int)
    await fill(log, 1)
    given = stopping(engine, handler, {"in": log}, retries=Retries(9, (60.0,)), poll_s_max=0.05)
    failed, done = asyncio.Event(), asyncio.Event()
    async with given.run():
        await asyncio.wait_for(failed.wait(), 5)
        may = True
        assert await given.replica().step() is Progress.WON  # as another process, while the first one waits
        await log.append(2, id="next")
        await asyncio.wait_for(done.wait(), 5)


async def test_a_process_that_begins_waits_for_what_is_left_of_the_delay(engine: Engine) -> None:
    log = made("in", engine, int)
    await fill(log, -1)
    given = stopping(engine, no_negative, {"in": log}, retries=Retries(9, (0.3,)), poll_s_max=0.02)
    assert await given.run_until_idle(steps_max=1) == 1
    assert await given.run_until_idle(seconds=0.1) == 0
    assert (await given.status()).failures == 1
    assert await given.run_until_idle(seconds=0.29) == 1
    assert (await given.status()).failures == 2


# What is no entry's fault, and what cannot be said of one


@dataclass
class Texts:
    """The state `Total` as other code has it, which forgot to say so."""

    n: str = ""


async def test_a_state_that_cannot_be_read_stops_the_processor_and_refuses_no_entry(engine: Engine) -> None:
    log = made("in", engine, int)
    await fill(log, 1, 2)
    assert await processor(engine, no_negative, {"in": log}).run_until_idle()
    await log.append(3, id="three")
    with pytest.raises(NotRegistrable, match=r"(?s)cannot be read.*state_version="):
        await processor(engine, no_negative, {"in": log}, state=Texts).run_until_idle()
    assert await refused(engine) == []
    await processor(engine, no_negative, {"in": log}).run_until_idle()
    assert (await processor(engine, no_negative, {"in": log}).state()).n == 3


async def test_an_entry_with_an_absent_field_is_refused(engine: Engine) -> None:
    log = made("in", engine, int | None)
    await fill(log, None, 3)

    def no_none(total: Total, inputs: Inputs, step: Step) -> None:
        total.n += sum(entry.value + 0 for entry in inputs)

    await processor(engine, no_none, {"in": log}).run_until_idle()
    assert await refused(engine) == ["null"]


async def test_a_state_that_has_outgrown_its_register_stops_the_processor_and_refuses_no_entry(engine: Engine) -> None:
    @dataclass
    class Kept:
        texts: list[str] = field(default_factory=list)

    def keep(state: Kept, inputs: Inputs, step: Step) -> None:
        state.texts += [entry.value for entry in inputs]

    log = made("in", engine, str)
    await fill(log, *["x" * 300_000] * 9)
    with pytest.raises(TooLarge, match="keep less in it"):
        await processor(engine, keep, {"in": log}, state=Kept).run_until_idle()
    assert await refused(engine) == []
    assert len((await processor(engine, keep, {"in": log}, state=Kept).state()).texts) == 6


@pytest.mark.parametrize("size_bytes", [500_000, 3_000_000])
async def test_an_entry_is_refused_however_large_it_is(engine: Engine, size_bytes: int) -> None:
    def fails_on_large(total: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            if len(entry.value) > 1:
                raise ValueError("too long for me")
            total.n += 1

    log = made("in", engine, str)
    await fill(log, "B" * size_bytes, "g")
    await processor(engine, fails_on_large, {"in": log}).run_until_idle()
    assert (await processor(engine, fails_on_large, {"in": log}).state()).n == 1
    [entry] = await values(refused_log(engine))
    assert entry.position == "0.0" and entry.reason.startswith("ValueError: too long for me")
    is_left_out = size_bytes > 2 << 20
    assert (bytes(entry.value) == b"null") is is_left_out is ("did not fit" in entry.reason)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise IndexError("no text")


@pytest.mark.parametrize("error", [ValueError(f"no such file {chr(0xDCE9)}.txt"), Unspeakable()], ids=["text", "none"])
async def test_an_entry_is_refused_whatever_the_text_of_its_error(engine: Engine, error: Exception) -> None:
    def fails(total: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            if entry.value < 0:
                raise error
            total.n += 1

    log = made("in", engine, int)
    await fill(log, 1, -2, 3)
    await processor(engine, fails, {"in": log}).run_until_idle()
    assert await refused(engine) == ["-2"]
    assert (await processor(engine, fails, {"in": log}).state()).n == 2


async def test_a_note_of_entries_that_are_gone_keeps_no_other_row_waiting(engine: Engine) -> None:
    one, other = made("one", engine, int), made("other", engine, int)
    await fill(one, 1)
    await fill(other, 5, 6)
    replica = processor(engine, no_negative, {"one": one, "other": other}).replica()
    assert await replica.look_or_begin() is not None
    kept = await replica.register.read()
    assert kept is not None
    until = {key: Position(9) for key in kept.register.cursors if key.startswith("one")}
    noted = msgspec.structs.replace(kept.register, failed=Failed(until=until), failures=1)  # `one` had more once
    assert await replica.register.swap(kept, noted)
    await steps(processor(engine, no_negative, {"one": one, "other": other}).replica())
    assert (await processor(engine, no_negative, {"one": one, "other": other}).state()).n == 3


async def test_a_timer_that_fails_is_not_said_to_be_an_entry(engine: Engine) -> None:
    def fails_at_its_timer(total: Total, inputs: Inputs, step: Step) -> None:
        if not len(inputs):
            raise ValueError("no time")
        step.wake_at(step.now_ms)

    log = made("in", engine, int)
    await fill(log, 1)
    with pytest.raises(HandlerFailed, match="fails at its timer") as failed:
        await processor(engine, fails_at_its_timer, {"in": log}).run_until_idle()
    assert "that entry" not in str(failed.value)
