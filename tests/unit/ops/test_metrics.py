"""Status and metrics of a host say what became of messages, by queue and end, over every door."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from outbox import App, Client, Engine, Reject, Worker
from outbox.errors import Refused
from outbox.guards import GuardView, Rate
from outbox.metrics import METRICS, ROW, Metric, prometheus, prometheus_name, quantiles
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.admins.store import StoreAdmin
from outbox.ops.host import host
from outbox.ops.messages.status import status_text as status_text
from outbox.ops.shared.meter import RATE_EVERY_S, RATE_S, Meter, Metered
from outbox.ops.values.status import Handled, Handling, QueueStatus, ReadMetrics, ReadStatus, Status
from outbox.runtime.counts import AGE_BUCKET_COUNT, AGE_MS_MAX, Counts, Depth, PipelineFigures, SourceCounts
from outbox.streams import OrderedLog
from tests.unit.messages import Step
from tests.unit.streams.pipeline.counting import Counting
from tests.unit.waiting import until

SAMPLE = re.compile(r'^(\w+)(\{(?:\w+="(?:[^"\\\n]|\\.)*",?)*\}) (\S+)$')


def test_an_age_beyond_all_bounds_is_in_the_last_bucket_alone() -> None:
    counts = Counts(has_ages=True)
    source = counts.sources["steps"] = SourceCounts()
    for age_ms in (AGE_MS_MAX - 1, AGE_MS_MAX, 9 * AGE_MS_MAX):
        source.age(age_ms)
    found = samples(prometheus("m", counts))["outbox_critical_time_seconds_bucket"]
    assert list(found.values()) == [0] * (AGE_BUCKET_COUNT - 1) + [3] and 'le="+Inf"' in list(found)[-1]


def test_a_checkpoint_of_a_clock_that_is_ahead_has_no_age_and_more_metrics_are_given_on() -> None:
    counts, more = Counts(), Metric("more.given", "gauge", "s", "Given", lambda counts: ())
    counts.pipelines["p"] = PipelineFigures(0, 0, 0, "3.1", round(time.time() + 60) * 1_000, {})
    found = samples(prometheus("m", counts, [(more, [({ROW: "r"}, 7.5)])]))
    assert list(found["outbox_pipeline_checkpoint_seconds"].values()) == [0]
    assert found["more_given_seconds"] == {'{app="m",row="r"}': 7.5}


def app_of_steps() -> App:
    app = App('a "quoted"\\name\n')

    @app.handler("steps")
    def step(step: Step) -> None:
        if step.n < 0:
            raise Reject("below zero")

    return app


def samples(text: str) -> dict[str, dict[str, float]]:
    """The samples of a text by name and labels; every line is one, or a comment on one."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            match = SAMPLE.match(line)
            assert match is not None, line
            found.setdefault(match[1], {})[match[2]] = float(match[3])
    return found


async def test_a_host_says_what_became_of_its_messages(engine: Engine) -> None:
    app, meter = app_of_steps(), Meter()
    meter.counts.has_ages = True
    async with Worker(app, Metered(engine, meter), counts=meter.counts) as worker:
        admin = EngineAdmin(engine, meter, app)
        meter.tick()
        for n, id in ((1, "a"), (1, "a"), (-1, "b"), (2, "c")):
            await worker.send("steps", Step("k", n), id=id)
        await worker.wait_idle()
        found = await admin.ask(ReadStatus())
        handled: Any = found.queues["steps"].handled
        assert (handled.applied, handled.duplicates, handled.refused, handled.minute) == (2, 1, {"rejected": 1}, 4)
        line = "steps: 2 applied, 1 duplicate, 1 refused (rejected 1), 0 failed attempts, 0 rescheduled; "
        assert f"{line}4 in the last minute" in status_text(found).splitlines()
        text = await admin.ask(ReadMetrics())
    labels = '{app="a \\"quoted\\"\\\\name\\n",queue="steps"'
    read = samples(text)
    assert read["outbox_messages_total"][f'{labels},outcome="duplicate"}}'] == 1
    assert read["outbox_messages_total"][f'{labels},outcome="refused",reason="rejected"}}'] == 1
    assert read["outbox_critical_time_seconds_count"][f"{labels}}}"] == 2
    buckets = list(read["outbox_critical_time_seconds_bucket"].values())
    assert buckets == sorted(buckets) and buckets[-1] == 2
    absent = {"outbox_guard_state", "outbox_guard_rescheduled_total", "outbox_log_lag"}  # there are none
    absent |= {prometheus_name(metric) for metric in METRICS if metric.name.startswith("outbox.pipeline.")}
    absent |= {"outbox_requests_total", "outbox_requests_failed_total", "outbox_request_units_total"}  # nor a service
    assert {prometheus_name(metric) for metric in METRICS} - absent <= read.keys()


async def test_a_host_says_what_lies_in_its_queues_and_who_is_behind_in_its_logs(engine: Engine) -> None:
    app, meter = app_of_steps(), Meter()
    await Worker(app, engine).declare()
    await Client(app, engine).send("steps", Step("k"), id="a")
    log: OrderedLog[Step] = OrderedLog("entries", engine, type=Step)
    await log.register("audit")
    for n in range(3):
        await log.append(Step("k", n), id=f"e{n}")
    made = Counting(engine)
    await made.write("a b", "c")
    await made.pipeline.run_until_idle(engine, seconds=10)
    await made.write("d")
    looking = EngineAdmin(engine, meter, app)
    read = samples(await looking.ask(ReadMetrics()))
    traced = Meter()
    async with AsyncExitStack() as stack:
        host._read_rates(stack, traced, EngineAdmin(engine, traced, app))
        for _ in range(100):
            await asyncio.sleep(0)
    label = 'app="a \\"quoted\\"\\\\name\\n",'
    assert read["outbox_queue_messages"][f'{{{label}queue="steps",state="active"}}'] == 1
    assert read["outbox_log_lag"][f'{{{label}row="entries/0.0",reader="audit"}}'] == 3
    assert read["outbox_pipeline_lag"] == {f'{{{label}pipeline="index"}}': 1}
    assert read["outbox_pipeline_watermark"] == {f'{{{label}pipeline="index"}}': 2}
    assert read["outbox_pipeline_bundle"] == {f'{{{label}pipeline="index",log="changes"}}': 3}
    assert 0 <= read["outbox_pipeline_checkpoint_seconds"][f'{{{label}pipeline="index"}}'] < 60
    assert traced.counts.pipelines == meter.counts.pipelines
    assert traced.counts.depths["steps"].states["active"] == 1 and traced.counts.lags == meter.counts.lags


async def test_a_host_takes_its_readings_again_and_again_and_looks_into_its_queues_at_every_sixth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look that fails ends none of that."""
    done = list[str]()

    async def ask(asked: Any) -> Any:
        done.append("look")
        raise Refused("not now")

    monkeypatch.setattr(host, "RATE_EVERY_S", 0)
    monkeypatch.setattr(Meter, "tick", lambda meter: done.append("tick"))
    async with AsyncExitStack() as stack:
        host._read_rates(stack, Meter(), cast(Any, SimpleNamespace(ask=ask)))
        await until(lambda: len(done) > 9)
    assert done[:9] == ["tick", "look", *["tick"] * 6, "look"]


def test_each_figure_of_a_status_has_its_column_or_its_word() -> None:
    handled = Handled(11, 12, 13, 14, {"rejected": 15, "too-old": 16}, 17)
    orders = QueueStatus(1, 2, 3, 4, 5.0, 6, 7, True, True, handled, 1)
    guards = [
        GuardView("bank", "breaker", "open", "5 of 5 failed", 8.0, 9),
        GuardView("mail", "rate", "closed", "", 0.0, 0),
    ]
    text = status_text(Status({"orders": orders}, 18, Handling(19, 20.0, 21.0), None, guards))
    assert text.splitlines() == [
        "queue   active  scheduled  deferred  dead letters  oldest",
        "orders  1       2          3         4             5.0 s",
        "pending transactions: 18",
        (
            "orders: 7 keys are blocked behind a dead letter, until it is resubmitted or discarded; `outbox blocked "
            "list orders` names it"
        ),
        "orders is paused: nothing is taken from it until `outbox queue resume orders`",
        "orders: 1 of 2 scheduled is a next try; `outbox queue peek orders --state retrying` says why",
        "orders: no handler of this host takes from it, so what is in it waits for another receiver",
        (
            "orders: 11 applied, 12 duplicates, 31 refused (rejected 15, too-old 16), 13 failed attempts, "
            "14 rescheduled; 17 in the last minute"
        ),
        "breaker bank: open, 8 s more, 5 of 5 failed; it has rescheduled messages 9 times",
        "handled since start: 19, p50 20.0 ms, p99 21.0 ms from claim to durable commit",
    ]


@pytest.mark.parametrize("field", ["applied", "duplicates", "failed", "rescheduled", "minute"])
def test_what_became_of_messages_is_told_as_soon_as_there_is_any(field: str) -> None:
    none = Handled(0, 0, 0, 0, {}, 0)
    lines = [
        status_text(Status({"orders": QueueStatus(0, 0, 0, 0, None, handled=each)}, 0)).count("orders: ")
        for each in (none, msgspec.structs.replace(none, **{field: 1}))
    ]
    assert lines == [0, 1]


async def test_the_rate_is_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("outbox.ops.shared.meter.time.monotonic", lambda: now_s)
    meter = Meter()
    steps = meter.counts.of("steps")
    for _ in range(40):  # one message before each reading
        steps.applied += 1
        meter.tick()
        now_s += RATE_EVERY_S
    assert meter.handled("steps", 0).minute == round(RATE_S / RATE_EVERY_S)
    assert meter.handled("no-such-queue", 0).minute == 0
    now_s += 10 * RATE_S  # no readings since: of the last minute nothing is known, but what came since them
    steps.refused["too-old"] += 1
    assert meter.handled("steps", 0).minute <= 41


def test_what_is_handled_before_the_first_reading_counts_for_the_minute() -> None:
    meter = Meter()
    meter.counts.of("steps").applied = 5
    meter.tick()
    assert meter.handled("steps", 0).minute == 5


async def test_without_a_host_there_are_no_metrics(engine: Engine) -> None:
    with pytest.raises(Refused, match="outbox run"):
        await EngineAdmin(engine).ask(ReadMetrics())
    with pytest.raises(Refused, match="OpenTelemetry"):
        await StoreAdmin(cast(Any, None)).ask(ReadMetrics())


def all_different() -> Counts:
    """Counts of which each number is another one."""
    source = SourceCounts(applied=2, duplicates=3, failed=5, rescheduled=7, age_ms=2_500)
    source.refused["too-old"], source.ages[1], source.ages[3], source.ages[-1] = 11, 13, 17, 19
    usage: Any = SimpleNamespace(
        by_kind={"read": SimpleNamespace(count=23, charge_ru=2.5)},
        reasons={("write", "429"): 29, ("read", "timeout"): 31},
    )
    made_ms = (time.time() - 1_000) * 1_000
    counts = Counts({"q": source}, usage=usage)
    counts.conflicts, counts.unknown, counts.sent, counts.failed_sends = 37, 41, 43, 47
    counts.finished, counts.pending, counts.oldest_pending_s, counts.fullest_share = 53, 59, 6.5, 0.25
    counts.depths["q"] = Depth(8.5, {"active": 61, "scheduled": 67})
    counts.lags["row/0.0", "reader"] = 71
    counts.pipelines["p"] = PipelineFigures(73, 79, 83, "89.97", round(made_ms), {"sink": 101})
    rate = counts.guard(Rate(1.0, name="rate"))
    rate.rescheduled_count = 103
    return counts


def test_each_metric_reads_its_own_number_under_its_own_labels() -> None:
    read = samples(prometheus("a", all_different()))
    checkpoint = read.pop("outbox_pipeline_checkpoint_seconds")
    assert checkpoint == {'{app="a",pipeline="p"}': pytest.approx(1_000, abs=100)}
    buckets = read.pop("outbox_critical_time_seconds_bucket")
    sums = {re.sub('.*le="([^"]*)".*', r"\1", labels): count for labels, count in buckets.items()}
    assert [sums[bound] for bound in ("0.001", "0.002", "0.004", "0.008", "16777.2", "+Inf")] == [0, 13, 13, 30, 30, 49]
    q, p = '{app="a",queue="q"', '{app="a",pipeline="p"'
    assert read == {
        "outbox_messages_total": {
            f'{q},outcome="applied"}}': 2, f'{q},outcome="duplicate"}}': 3,
            f'{q},outcome="refused",reason="too-old"}}': 11,
        },
        "outbox_attempts_failed_total": {f"{q}}}": 5},
        "outbox_attempts_rescheduled_total": {f"{q}}}": 7},
        "outbox_commits_lost_total": {'{app="a"}': 37},
        "outbox_commits_unknown_total": {'{app="a"}': 41},
        "outbox_sent_total": {'{app="a"}': 43},
        "outbox_sends_failed_total": {'{app="a"}': 47},
        "outbox_swept_total": {'{app="a"}': 53},
        "outbox_pending": {'{app="a"}': 59},
        "outbox_pending_oldest_seconds": {'{app="a"}': 6.5},
        "outbox_queue_messages": {f'{q},state="active"}}': 61, f'{q},state="scheduled"}}': 67},
        "outbox_queue_oldest_seconds": {f"{q}}}": 8.5},
        "outbox_log_lag": {'{app="a",row="row/0.0",reader="reader"}': 71},
        "outbox_pipeline_lag": {f"{p}}}": 79},
        "outbox_pipeline_watermark": {f"{p}}}": 89},
        "outbox_pipeline_bundle": {f'{p},log="sink"}}': 101},
        "outbox_requests_total": {'{app="a",operation="read"}': 23},
        "outbox_requests_failed_total": {
            '{app="a",operation="read",reason="timeout"}': 31, '{app="a",operation="write",reason="429"}': 29,
        },
        "outbox_request_units_total": {'{app="a",operation="read"}': 2.5},
        "outbox_partition_share": {'{app="a"}': 0.25},
        "outbox_guard_state": {'{app="a",guard="rate"}': 0},
        "outbox_guard_rescheduled_total": {'{app="a",guard="rate"}': 103},
        "outbox_critical_time_seconds_sum": {f"{q}}}": 2.5},
        "outbox_critical_time_seconds_count": {f"{q}}}": 49},
    }  # fmt: skip


def test_names_and_texts_are_told_once_and_in_the_order_of_the_table() -> None:
    text = prometheus("app", Counts({"q": SourceCounts(applied=1)}))
    names = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    assert [name for name, _ in names[:-1]] == [prometheus_name(metric) for metric in METRICS]
    assert all(name.endswith("_total") is (kind == "counter") for name, kind in names[:-1])
    assert names[-1] == ("outbox_critical_time_seconds", "histogram")


def test_quantiles_are_of_what_came_between_two_readings() -> None:
    counts = SourceCounts()
    for age_ms in [3] * 99 + [900]:
        counts.age(age_ms)
    before = [0] * len(counts.ages)
    assert quantiles(counts.ages, before, (0.5, 0.99, 1.0)) == [0.004, 0.004, 1.024]
    before = list(counts.ages)
    assert quantiles(counts.ages, before, (0.5,)) == [0.0]
    counts.age(17)
    assert quantiles(counts.ages, before, (0.5,)) == [0.032]


def test_telemetry_without_opentelemetry_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "outbox.otel", None)
    with pytest.raises(Refused, match=r"pip install .outbox-azure\[otel\]"):
        host._traced(host.HostSettings(None, app_of_steps(), sampled=1.0), Engine.in_memory(), Meter())
