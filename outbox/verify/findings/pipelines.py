"""`explore_pipeline`: every interleaving of a pipeline's replicas with its source, crashes and other faults.

    report = explore_pipeline(index, [page1, page2], replicas=2, crashes=1)
    assert report.exhausted and not report.anomalies, report.text

What runs is the code of production over models of the stores; the entries arrive one after the other, at any time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import msgspec

from outbox.streams.cells import Cell
from outbox.streams.pipeline.graph import Pipeline
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.release import Release
from outbox.streams.pipeline.replica import PipelineReplica
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.loop import done
from outbox.verify.explorer.models.blobs import BlobModel
from outbox.verify.explorer.run import Program
from outbox.verify.explorer.scenario import START_MS
from outbox.verify.explorer.search import Limits, search
from outbox.verify.explorer.streams import Feeder, Given, PipelineReplicas, Stores, StreamScenario
from outbox.verify.findings.exploration import SECONDS, STATE_COUNT_MAX
from outbox.verify.findings.report import Anomaly, Part, Report, shortened
from outbox.verify.promises.pipelines import PipelineMonitor, entry_id

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
    anomalies = tuple(
        Anomaly(each.promise, each.text, shortened(each.trace.text), each.steps) for each in found.anomalies
    )
    part = Part(found.scope, found.states, found.transitions, found.finals, found.runs)
    return Report(found.scope, found.exhausted, anomalies, (part,), found.stopped, time.process_time() - began_s)


def pipeline_scenario(
    plans: Sequence[PipelinePlan],
    entries: Sequence[Any],
    budgets: Budgets,
    *,
    begun: bool = True,
    sizes: Sequence[int] = (1, 2, 3),
    **options: Any,
) -> StreamScenario:
    """A replica for each of the plans, which are versions of one pipeline, over a source that entries come to.

    `begun`: a replica of the first has made the register and done nothing.  `sizes` are how many entries each replica
    feeds at once, so that their bundles are not alike; `options` are those of all replicas.
    """
    given, at = Given(), Stores(blobs=BLOBS)
    moved = [plan.on(lambda log: given.place) for plan in plans]
    if begun:
        done(PipelineReplica(moved[0], given.place).begin())
    row = moved[0].source_row()
    done(row.opened())
    cells = [_cell(row.values, number, value) for number, value in enumerate(entries)]
    programs: list[Program] = [Feeder(row.cells.key, cells, 0, at.capabilities, "source")] if cells else []
    programs += [PipelineReplicas(plan, at, entries_max=size, **options) for plan, size in zip(moved, cycle(sizes))]
    documents = given.documents()
    monitor = PipelineMonitor(list({plan.version: plan for plan in moved}.values()), entries, documents, START_MS)
    words = f"{moved[0].name}: {len(plans)} replica(s), {len(entries)} entries"
    return StreamScenario(programs, monitor, at, [documents], budgets, beside=[BlobModel()], words=words)


def _cell(values: Any, number: int, value: Any) -> bytes:
    raws, types = values.encoded([value])
    return msgspec.json.encode(Cell(entry_id(number), START_MS, 1, raws, types, values.version))
