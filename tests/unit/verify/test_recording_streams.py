"""Processors and ingests on the real engine, recorded: sound as they are, and found out where a store lies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec
import pytest

from outbox import App, Engine, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.entities import QueueSettings
from outbox.errors import NotRegistrable, OutcomeUnknown, Refused
from outbox.ports import Create, Document, DocumentKey, Lost, Replace, Session, StateStore, Tag, Won, Write
from outbox.streams import Ingest, Inputs, OrderedLog, Processor, Step
from outbox.streams.cells import Cell, Position
from outbox.streams.log_places import Place
from outbox.streams.plan import QueueOutput
from outbox.streams.register import Out, Register
from outbox.streams.replica import Progress, Replica
from outbox.verify.faults import FaultPlan, Faults, FaultyStore, SimulatedCrash
from outbox.verify.guarantees import check
from outbox.verify.history import History
from outbox.verify.recorded.events import Found, Push, Read
from outbox.verify.recorded.recording import recorded
from outbox.verify.recorded.streams import (
    Names,
    RecordedDocuments,
    Steps,
    recorded_ingest,
    recorded_log,
    recorded_processor,
    rows_of,
)
from outbox.verify.recorded.verdict import Verdict
from tests.unit.messages import Number, Total
from tests.unit.streams.making import sum_up
from tests.unit.verify.lying import Lying

ROUND_COUNT_MAX, STEP_COUNT_MAX = 400, 2_000


@dataclass
class Chain:
    """Two processors behind each other, the second of two inputs."""

    engine: Engine
    numbers: OrderedLog[Number]
    sums: OrderedLog[Number]
    totals: OrderedLog[Number]
    processors: list[Processor[Total]]

    @classmethod
    def on(cls, engine: Engine) -> Chain:
        numbers, sums, totals = (OrderedLog(name, engine, type=Number) for name in ("numbers", "sums", "totals"))
        inputs = ({"numbers": numbers}, {"numbers": numbers, "sums": sums})
        processors = [
            Processor(name, sum_up, state=Total, register=engine, inputs=given, outputs={"sums": to}, batch_max=3)
            for name, given, to in zip(("first", "second"), inputs, (sums, totals), strict=True)
        ]
        return cls(engine, numbers, sums, totals, processors)

    async def run(self, processors: Sequence[Processor[Total]], draw: random.Random) -> bool:
        """Two replicas of each, until all are idle; False where one of them died."""
        replicas = [processor.replica() for processor in processors for _ in range(2)]
        idle: set[Replica] = set()
        stopped: set[Replica] = set()

        async def live(replica: Replica) -> None:
            for _ in range(STEP_COUNT_MAX):
                try:
                    if await replica.step() is Progress.IDLE:
                        idle.add(replica)
                    else:
                        idle.clear()
                except (OutcomeUnknown, Refused):
                    replica.known = None
                except NotRegistrable:  # it has seen through a lying store, and stands still
                    stopped.add(replica)
                if len(idle | stopped) == len(replicas) or replica in stopped:
                    return
                for _ in range(draw.randrange(6)):
                    await asyncio.sleep(0)
            raise AssertionError("the processors are not idle")

        tasks = [asyncio.ensure_future(live(replica)) for replica in replicas]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [each for each in found if each is not None and not isinstance(each, asyncio.CancelledError)]
        if errors and not isinstance(errors[0], SimulatedCrash):
            raise errors[0]
        return not errors


Wrapper = Callable[[StateStore], Any]


async def judged(seed: int, *, faults: Faults | None = None, lies: Wrapper | None = None) -> tuple[Verdict, History]:
    """A chain that is fed, run under faults and restarted after each crash, recorded and judged."""
    draw, plan, history = random.Random(seed), FaultPlan(faults or Faults()), History()
    history.life(boot="b", is_empty=True)

    def failing(place: Place) -> Place:
        store = FaultyStore(place.store, plan) if faults else place.store
        return replace(place, store=lies(store) if lies else store)

    async with Engine.in_memory() as engine:
        chain = Chain.on(engine)
        producer = recorded_log(chain.numbers, history)
        for n in range(8):
            await producer.append(Number(n), id=f"n{n}")
        for _ in range(ROUND_COUNT_MAX):
            processors = [recorded_processor(each.over(failing), history) for each in chain.processors]
            if await chain.run(processors, draw):
                break
            history.life(boot="b")
        history.quiesce(rows_of(chain.numbers, chain.sums))
    return check(history), history


@pytest.mark.parametrize("seed", range(40))
async def test_a_chain_of_processors_keeps_every_promise_under_faults(seed: int) -> None:
    faults = Faults.drawn(seed=seed, crashes=2, lost=4, refused=2, delayed=6, within=120)
    verdict, _ = await judged(seed, faults=faults)
    assert verdict.ok, verdict.text
    assert verdict.counts.steps >= 8 and verdict.counts.outputs >= 6
    assert f"{verdict.counts.steps:,} steps" in verdict.text


@dataclass(eq=False)
class RepliesLate(Lying):
    """What a write did is there for others before its caller learns of it."""

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        answer = await self.store.write(operations)
        for _ in range(9):
            await asyncio.sleep(0)
        return answer


@pytest.mark.parametrize("seed", range(10))
async def test_a_replica_may_go_on_with_a_swap_before_the_other_learns_that_it_won(seed: int) -> None:
    verdict, _ = await judged(seed, lies=RepliesLate)
    assert verdict.ok, verdict.text


@dataclass(eq=False)
class AppendsAgain(Lying):
    """The second cell of the sums lies at the third index, too."""

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        answer = await self.store.write(operations)
        (create,) = operations
        if isinstance(create, Create) and create.key == DocumentKey("log/sums/0.0/0", "0000000001"):
            await self.store.write([Create(DocumentKey(create.key.partition, "0000000002"), create.body)])
        return answer


@dataclass(eq=False)
class ChangesACell(Lying):
    """A cell reads differently than it was written."""

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found = await self.store.read(key, session=session)
        if found is None or not key.partition.startswith("log/sums") or not key.id.endswith("1"):
            return found
        cell = msgspec.json.decode(found.body, type=Cell)
        body = msgspec.json.encode(msgspec.structs.replace(cell, v=[msgspec.Raw(b'{"n":-1}')] * cell.count))
        return replace(found, body=body)


@dataclass(eq=False)
class ForgetsASwap(Lying):
    """A swap is acknowledged and not there."""

    has_lied: bool = False

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        (write,) = operations
        if write.tag.what == "register" and write.tag.tx == "3" and not self.has_lied:
            self.has_lied = True
            return Won(("none",))
        return await self.store.write(operations)


@dataclass(eq=False)
class LosesACell(Lying):
    """A cell of the sums is acknowledged, and another is there when it is read."""

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        (create,) = operations
        if isinstance(create, Create) and create.key == DocumentKey("log/sums/0.0/0", "0000000000"):
            cell = msgspec.json.decode(create.body, type=Cell)
            create = replace(create, body=msgspec.json.encode(msgspec.structs.replace(cell, id="another")))
        return await self.store.write([create])


@dataclass(eq=False)
class MovesACursor(Lying):
    """A swap that skips, or repeats, entries of its input."""

    by: int = 1

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        (write,) = operations
        if isinstance(write, Replace) and write.tag.what == "register" and write.tag.tx == "2":
            register = msgspec.json.decode(write.body, type=Register)
            cursors = {name: Position(max(0, at.index + self.by)) for name, at in register.cursors.items()}
            write = replace(write, body=msgspec.json.encode(msgspec.structs.replace(register, cursors=cursors)))
        return await self.store.write([write])


@pytest.mark.parametrize(
    ("lies", "what"),
    [
        pytest.param(AppendsAgain, "appended twice", id="appends again"),
        pytest.param(ChangesACell, "changed payload", id="changes a cell"),
        pytest.param(ForgetsASwap, "forked version", id="forgets a swap"),
        pytest.param(LosesACell, "overwritten cell", id="loses a cell"),
        pytest.param(lambda store: MovesACursor(store, 1), "entries left out", id="skips"),
        pytest.param(lambda store: MovesACursor(store, -1), "entries taken twice", id="repeats"),
    ],
)
async def test_a_store_that_lies_is_found_out(lies: Wrapper, what: str) -> None:
    verdict, history = await judged(1, lies=lies)
    assert what in {finding.what for finding in verdict.findings}, verdict.text
    assert any(isinstance(event, Push) for event in history.events())


@dataclass
class Order:
    id: str
    n: int


async def ingested(faults: Faults) -> Verdict:
    """Messages, each sent twice, into a log in two shards; from there into a handler's queue; judged."""
    app, history, plan = App("shop"), History(), FaultPlan(faults)
    history.life(boot="b", is_empty=True)
    app.queue("orders")

    @app.handler("sums", key="n")
    def take(number: Number, total: Total) -> None:
        total.sum += number.n

    async with Engine.in_memory() as engine, Worker(app, recorded(engine, history)) as worker:
        entries = OrderedLog("orders", engine, type=Order)
        given = Ingest("orders", queue="orders", type=Order, source=engine, log=entries, shards=2)
        failing = given.over(lambda ports: replace(ports, store=FaultyStore(ports.store, plan)))
        ingest = recorded_ingest(failing, history)
        outputs = {"sums": engine.queue("sums", key=lambda value: value.n)}
        adder = Processor("adder", forward, state=Total, register=engine, inputs={"orders": entries}, outputs=outputs)
        processor = recorded_processor(adder, history)
        await recorded_ingest(given, history).open()
        for n in range(12):
            await worker.send("orders", Order(f"o{n % 6}", n % 6), id=f"o{n % 6}")
        for _ in range(ROUND_COUNT_MAX):
            try:
                if not await ingest.turn(wait_s=0) and not await processor.run_until_idle():
                    break
            except SimulatedCrash:
                ingest = recorded_ingest(failing, history)
                engine.broker.lapse_locks()
            except (OutcomeUnknown, Refused):
                engine.broker.lapse_locks()
        await worker.wait_idle()
        history.quiesce(["orders", "sums", *rows_of(entries)])
        assert sorted([entry.value.n async for entry in entries.read()]) == list(range(6))
    return check(history)


def forward(state: Total, inputs: Inputs, step: Step) -> None:
    for entry in inputs:
        state.sum += 1
        step.emit("sums", Number(entry.value.n))


@pytest.mark.parametrize("seed", range(20))
async def test_an_ingest_and_what_a_processor_sends_to_a_queue_are_judged_with_their_handlers(seed: int) -> None:
    faults = Faults.drawn(seed=seed, crashes=2, lost=2, refused=2, within=40) if seed else Faults()
    verdict = await ingested(faults)
    assert verdict.ok, verdict.text
    assert (verdict.counts.applied, verdict.counts.refused) == (12, 0)  # six messages, and what is sent for each


async def test_a_message_whose_body_goes_to_a_blob_is_no_ghost(engine: Engine) -> None:
    history = History()
    history.life(is_empty=True)

    def send(state: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            step.emit("large", Text(entry.value.n, "x" * 200_000))
            step.emit("large", Text(entry.value.n, "x"))

    engine.declare(QueueSettings("large"))
    entries = OrderedLog("numbers", engine, type=Number)
    await recorded_log(entries, history).append(Number(1), id="n1")
    outputs = {"large": engine.queue("large")}
    given = Processor("p", send, state=Total, register=engine, inputs={"in": entries}, outputs=outputs)
    await recorded_processor(given, history).run_until_idle()
    history.quiesce(rows_of(entries))
    verdict = check(history)
    assert verdict.ok and verdict.counts.outputs == 2, verdict.text


@dataclass
class Text:
    n: int
    text: str


async def test_a_processor_that_began_and_took_nothing_has_left_entries_unread(engine: Engine) -> None:
    history = History()
    history.life(is_empty=True)
    chain = Chain.on(engine)
    await recorded_log(chain.numbers, history).append(Number(1), id="n1")
    await recorded_processor(chain.processors[0], history).replica().look_or_begin()
    history.quiesce(rows_of(chain.numbers))
    assert [finding.what for finding in check(history).findings] == ["unread entries"]


async def test_a_register_and_a_cell_are_told_of_once_and_nothing_is_of_what_is_not_theirs() -> None:
    history = History()
    steps = Steps(history, {"processor/p": Names("p", {}, {})})
    register, cell = DocumentKey("processor/p", "register"), DocumentKey("log/numbers/0.0/0", "0000000003")
    documents = [
        Document(register, msgspec.json.encode(Register(nonce="n1")), "1"),
        Document(register, b"not ours", "2"),
        Document(cell, msgspec.json.encode(Cell("c1")), "1"),
        Document(replace(cell, id="0000000004"), b"not ours", "1"),
        Document(replace(cell, id="0000000002"), msgspec.json.encode(Cell("c0", gone=True)), "1"),
    ]
    for document in (*documents, *documents):
        steps.look(document)
    found, read = history.events()
    assert isinstance(found, Found) and found.txs == ["n1"]
    assert isinstance(read, Read) and read.log == "log/numbers/0.0" and [at[:2] for at in read.cells] == [(3, "c1")]


async def test_a_swap_is_recorded_with_the_records_beside_it_and_large_bodies_as_elsewhere(
    engine: Engine,
) -> None:
    engine.declare(QueueSettings("told"))
    large, small = (msgspec.Raw(b'"%b"' % (b"x" * size)) for size in (200_000, 1))
    history, target = History(), QueueOutput(engine.queue("told"))
    steps = Steps(history, {"ingest/i": Names("ingest/i", {}, {"large": target, "small": target})})
    register = Register(outs=[Out(name, [raw], ["Text"]) for name, raw in (("large", large), ("small", small))])
    commit = steps.commit(
        Create(DocumentKey("ingest/i", "register"), msgspec.json.encode(register), tag=Tag("register")),
        [
            Create(DocumentKey("p", f"{what}{number}"), body, tag=Tag(what, (bytes([number]),)))
            for number, (what, body) in enumerate(
                (("commit", b"{}"), ("commit", b'{"reason":"no"}'), ("failures", b'{"count":1}'))
            )
        ],
    )
    assert (commit.applied, commit.refused, len(commit.spilled), len(commit.outputs)) == (["00"], ["01"], 1, 1)
    assert commit.outputs[0].id.rpartition("-")[0] not in commit.spilled


def test_only_the_records_of_an_ingest_that_lie_apart_are_recorded_there(engine: Engine) -> None:
    ports = NarrowEngine(engine, "item").ports()

    class Given:
        """An ingest that shows which ports it gets."""

        def rows(self) -> dict[str, Any]:
            return {}

        def over(self, ports_of: Any, _: Any) -> Any:
            return [ports_of(each) for each in (ports, replace(ports, infrastructure=ports.store))]

    given: Any = Given()
    one, two = cast(Any, recorded_ingest(given, History()))
    recorded_kinds = [isinstance(each, RecordedDocuments) for each in (one.store, two.store, two.infrastructure)]
    assert recorded_kinds == [True, False, True] and one.infrastructure is None
