"""`explore_processor` and `explore_pipeline`: every interleaving of replicas with what arrives, crashes, other faults.

    report = explore_processor(average, {"left": [...], "right": [...]}, replicas=2, crashes=1, lost=1)
    report = explore_pipeline(index, [page1, page2], replicas=2, crashes=1)
    assert report.exhausted and not report.anomalies, report.text

What runs is the code of production over models of the stores; the entries arrive one after the other, at any time.
What is found first has a shortest way to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import cycle
from operator import or_
from typing import Any, get_type_hints

import msgspec

from outbox.codec import StateCodec, codec_for
from outbox.errors import NotRegistrable
from outbox.ports import Create
from outbox.streams.cells import Cell
from outbox.streams.log import OrderedLog
from outbox.streams.pipeline.graph import Pipeline
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.release import Release
from outbox.streams.pipeline.replica import PipelineReplica
from outbox.streams.plan import Handler, Inputs, ProcessorPlan, Step
from outbox.streams.processor import Processor
from outbox.streams.values import Values
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.models.store import BlobModel
from outbox.verify.explorer.run import Program, done
from outbox.verify.explorer.scenario import START_MS
from outbox.verify.explorer.search import Limits, search
from outbox.verify.explorer.search import Report as Searched
from outbox.verify.explorer.streams import Feeder, Given, PipelineReplicas, Replicas, Stores, StreamScenario
from outbox.verify.findings.exploration import SECONDS, STATE_COUNT_MAX
from outbox.verify.findings.report import Anomaly, Part, Report, shortened
from outbox.verify.promises.pipelines import PipelineMonitor, entry_id
from outbox.verify.promises.streams import Invariant, StreamMonitor

DISCOVERED_MAX = 20


Explored = Callable[[ProcessorPlan], Searched]
"""Explores a plan with the inputs, replicas and faults that were asked for."""


def explore_processor(
    processor: Processor[Any] | Handler,
    inputs: Mapping[str, Sequence[Any]],
    *,
    replicas: int = 2,
    crashes: int = 1,
    lost: int = 0,
    refused: int = 0,
    delayed: int = 0,
    stale: int = 0,
    jumps: int = 0,
    batch_max: int | None = None,
    invariant: Invariant | None = None,
    at_end: Invariant | None = None,
    seconds: float = SECONDS,
) -> Report:
    """Run a processor, or a handler, in every interleaving of its replicas with the arrival of these inputs.

    `inputs` are values by input, in order, each in a cell of its own.  A handler's state is what its first parameter is
    annotated with, and it may emit to any output.  The numbers count faults in one run: a replica dies (`crashes`), a
    call takes effect and its reply is lost (`lost`), is throttled (`refused`) or lands at any later time (`delayed`), a
    read answers from the past (`stale`), time leaps to where something expires (`jumps`).

    `invariant` is given a world, with `state(processor)`, `entries(log)` and `in_flight(log)`, after every step; it
    returns whether all is well, or raises an AssertionError.  `at_end` is given those worlds alone in which nothing
    more can happen.  `seconds` of CPU are spent at most.

    Raises:
        ValueError, NotRegistrable: what is asked for cannot be explored; the text says what can.
    """
    if replicas < 1 or seconds <= 0:
        raise ValueError(f"replicas={replicas}, seconds={seconds}: at least one replica, and some time")
    budgets = Budgets(crashes, lost, delayed, refused, stale=stale, jump=jumps)
    began_s = time.process_time()
    explored = partial(
        _explored,
        inputs=inputs,
        replicas=replicas,
        budgets=budgets,
        batch_max=batch_max,
        invariant=invariant,
        at_end=at_end,
        seconds=seconds,
    )
    found = explored(processor.plan) if isinstance(processor, Processor) else _discovering(processor, inputs, explored)
    return _reported(found, began_s)


def _reported(found: Searched, began_s: float) -> Report:
    anomalies = tuple(
        Anomaly(each.promise, each.text, shortened(each.trace.text), each.steps) for each in found.anomalies
    )
    part = Part(found.scope, found.states, found.transitions, found.finals, found.runs)
    return Report(found.scope, found.exhausted, anomalies, (part,), found.stopped, time.process_time() - began_s)


def _discovering(handler: Handler, inputs: Mapping[str, Sequence[Any]], explored: Explored) -> Searched:
    """Explore a handler whose outputs are not known: again with each that it emits to."""
    outputs: set[str] = set()
    for _ in range(DISCOVERED_MAX):
        noted = set(outputs)
        found = explored(_plan_of(handler, partial(_noting, handler, noted), inputs, sorted(outputs)))
        if noted == outputs:
            return found
        outputs = noted
    raise ValueError(f"the handler emits to more than {DISCOVERED_MAX} outputs; give a Processor, which declares them")


def _noting(handler: Handler, noted: set[str], state: Any, inputs: Inputs, step: Step) -> Any:
    """Run a handler, and note to what outputs it emits."""
    noting: Any = _Open(step, noted)  # what a handler may ask of a step
    return handler(state, inputs, noting)


class _Open:
    """A step that may emit to any output; outputs that the processor does not have yet are noted."""

    def __init__(self, step: Step, outputs: set[str]) -> None:
        self._step = step
        self._noted = outputs
        self.now_ms, self.serial = step.now_ms, step.serial
        self.save, self.wake_at = step.save, step.wake_at

    def emit(self, output: str, value: Any) -> None:
        self._noted.add(output)
        if output in self._step.outputs:
            self._step.emit(output, value)


def _plan_of(
    handler: Handler, noting: Handler, inputs: Mapping[str, Sequence[Any]], outputs: Sequence[str]
) -> ProcessorPlan:
    hints = [hint for name, hint in get_type_hints(handler).items() if name != "return"]
    if not hints or not isinstance(hints[0], type):
        raise NotRegistrable("the handler's first parameter has no annotation; annotate it with the type of the state")
    place = Given().place
    both = sorted(set(inputs) & set(outputs))
    if both:
        raise NotRegistrable(f"{', '.join(both)} is an input and an output; give them two names")
    return ProcessorPlan(
        "processor",
        noting,
        StateCodec(codec_for(hints[0], hints[0].__name__)),
        {name: OrderedLog(name, place, type=_type_of(inputs[name])).reader(0) for name in sorted(inputs)},
        {name: OrderedLog(name, place, type=Any).writer(0) for name in outputs},
    )


def _type_of(values: Sequence[Any]) -> Any:
    kinds: Any = dict.fromkeys(map(type, values))
    return reduce(or_, kinds) if kinds else Any


def _explored(
    plan: ProcessorPlan,
    *,
    inputs: Mapping[str, Sequence[Any]],
    replicas: int,
    budgets: Budgets,
    batch_max: int | None,
    invariant: Invariant | None,
    at_end: Invariant | None,
    seconds: float,
) -> Searched:
    unknown = sorted(set(inputs) - set(plan.inputs))
    if unknown:
        raise ValueError(f"no input {', '.join(unknown)}; the processor has {', '.join(plan.inputs)}")
    if batch_max is not None:
        plan = replace(plan, batch_max=batch_max)
    given, at = Given(), Stores()
    plan = plan.on(lambda log: given.place)
    given.begun(plan)
    programs: list[Program] = []
    for name, rows in plan.rows().items():
        row = next(iter(rows.values()))
        cells = [_cell(row.values, f"{name} {number}", value) for number, value in enumerate(inputs.get(name, ()))]
        done(row.opened())
        if cells:
            programs.append(Feeder(row.cells.key, cells, 0, at.capabilities, f"input {name}"))
    programs += [Replicas(plan, at)] * replicas
    produced = {f"{name} {number}" for name in inputs for number in range(len(inputs[name]))}
    monitor = StreamMonitor([plan], produced=produced, invariant=invariant, at_end=at_end)
    monitor.knows(Create(key, body) for key, body in given.documents().items())
    words = f"{plan.name}: {replicas} replica(s), {sum(map(len, inputs.values()))} entries"
    scenario: Any = StreamScenario(programs, monitor, at, given.apart(at), budgets, words=words)
    return search(scenario, limits=Limits(states=STATE_COUNT_MAX, cpu_s=seconds))


BLOBS = 1


def explore_pipeline(
    pipeline: Pipeline,
    entries: Sequence[Any],
    *,
    release: Release | None = None,
    replicas: int = 2,
    crashes: int = 1,
    lost: int = 0,
    refused: int = 0,
    delayed: int = 0,
    stale: int = 0,
    checkpoint_every: int = 1,
    seconds: float = SECONDS,
) -> Report:
    """Run a pipeline in every interleaving of its replicas with the arrival of these entries of its source.

    A replica makes a checkpoint behind each `checkpoint_every`th entry (0: none).  The numbers count faults in one run:
    a replica dies (`crashes`), a call takes effect and its reply is lost (`lost`), is throttled (`refused`) or lands at
    any later time (`delayed`), a read answers from the past (`stale`).  `seconds` of CPU are spent at most.

    What is promised is what the `release` promises (default: `in_order`): with `at_least_once` outputs may come twice,
    with `at_most_once` not at all.

    Raises:
        ValueError, NotRegistrable: what is asked for cannot be explored; the text says what can.
    """
    plan = pipeline.plan(release)
    plan.check_release()
    if replicas < 1 or seconds <= 0 or (plan.release.waits and not checkpoint_every):
        raise ValueError(
            f"replicas={replicas}, seconds={seconds}, checkpoint_every={checkpoint_every}: a replica, some time, and "
            "checkpoints where outputs wait for them"
        )
    budgets, began_s = Budgets(crashes, lost, delayed, refused, stale=stale), time.process_time()
    scenario: Any = pipeline_scenario([plan] * replicas, entries, budgets, checkpoint_every=checkpoint_every)
    found = search(scenario, limits=Limits(states=STATE_COUNT_MAX, cpu_s=seconds))
    return _reported(found, began_s)


def pipeline_scenario(
    plans: Sequence[PipelinePlan],
    entries: Sequence[Any],
    budgets: Budgets,
    *,
    begun: bool = True,
    arrived: bool = False,
    sizes: Sequence[int] = (1, 2, 3),
    **options: Any,
) -> StreamScenario:
    """A replica for each of the plans, which are versions of one pipeline, over a source that entries come to.

    `begun`: a replica of the first has made the register and done nothing.  `arrived`: the entries are there from the
    beginning.  `sizes` are how many entries each replica feeds at once, so that their bundles are not alike; `options`
    are those of all replicas.
    """
    given, at = Given(), Stores(blobs=BLOBS)
    moved = [plan.on(lambda log: given.place) for plan in plans]
    if begun:
        done(PipelineReplica(moved[0], given.place).begin())
    row = moved[0].source_row()
    done(row.opened())
    cells = [_cell(row.values, entry_id(number), value) for number, value in enumerate(entries)]
    programs: list[Program] = []
    if arrived:
        for index, cell in enumerate(cells):
            done(given.place.store.write([Create(row.cells.key(index), cell)]))
    elif cells:
        programs.append(Feeder(row.cells.key, cells, 0, at.capabilities, "source"))
    programs += [PipelineReplicas(plan, at, entries_max=size, **options) for plan, size in zip(moved, cycle(sizes))]
    documents = given.documents()
    monitor = PipelineMonitor(list({plan.version: plan for plan in moved}.values()), entries, documents, START_MS)
    words = f"{moved[0].name}: {len(plans)} replica(s), {len(entries)} entries"
    return StreamScenario(programs, monitor, at, [documents], budgets, beside=[BlobModel()], words=words)


def _cell(values: Values, id: str, value: Any) -> bytes:
    raws, types = values.encoded([value])
    return msgspec.json.encode(Cell(id, START_MS, 1, raws, types, values.version))
