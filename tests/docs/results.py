"""The sentences of result above the charts, made from the rows that each chart draws.

`tests.docs.figures` puts them in their places; a sentence stands between `<!-- NAME-result: ... -->` and its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
Rows = list[Row]


def _only(rows: Rows, **wanted: object) -> Row:
    """The one row that has these values."""
    [row] = [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    return row


def _rate(row: Row) -> str:
    return f"{row['messages_per_s']['median']:,.0f}"


def w1(rows: Rows) -> str:
    """Ours beside SQLite by hand, one at a time and 64 in flight."""
    ours, hand, one, hand_one = (
        _rate(_only(rows, durable=True, **wanted))
        for wanted in (
            {"system": "outbox", "in_flight": 64},
            {"system": "sqlite", "variant": "batch64"},
            {"system": "outbox", "in_flight": 1},
            {"system": "sqlite", "variant": "one"},
        )
    )
    return (
        f"{ours} messages a second on disk with 64 in flight, where SQLite by hand does {hand} in batches of 64; "
        f"one at a time {one} and {hand_one}."
    )


def peers(rows: Rows) -> str:
    """Ours beside the faster of the two ways of DBOS, 64 in flight."""
    dbos = max((row for row in rows if row["system"] == "dbos" and row["in_flight"] == 64), key=_median)
    ours = _rate(_only(rows, system="outbox", in_flight=64))
    return (
        f"With 64 in flight {ours} messages a second, and {_rate(dbos)} of DBOS on SQLite, which is not its production "
        "database."
    )


def _median(row: Row) -> float:
    return float(row["messages_per_s"]["median"])


def profile(rows: Rows) -> str:
    """The three stages that take most."""
    most = sorted(rows, key=lambda row: float(row["median_us"]), reverse=True)[:3]
    share = sum(row["median_us"] for row in most) / sum(row["median_us"] for row in rows)
    names = [f"`{row['stage']}`" for row in most]
    return f"{', '.join(names[:2])} and {names[2]} take {share:.0%} of a message's time."


def telemetry(rows: Rows) -> str:
    """The CPU of a message without traces, with some and with all."""
    none, some, every = (
        f"{_only(rows, telemetry=name)['cpu_us']['median']:.1f}" for name in ("none", "one in a hundred", "all")
    )
    return f"A message takes {none} µs of CPU without traces, {some} with one traced in a hundred, {every} with all."


def looks(rows: Rows) -> str:
    """The longest that an answer holds the loop, and the one that does."""
    asked = [row for row in rows if row["count"] == 100_000 and row["what"] != "nothing"]
    longest = max(asked, key=lambda row: float(row["held_ms"]["median"]))
    return (
        f"With 100,000 messages held no answer stops the handlers for more than {longest['held_ms']['median']:.0f} ms "
        f"(`{longest['what']}`, which takes {longest['took_ms']['median'] / 1000:.1f} s)."
    )


def scopes(rows: Rows) -> str:
    """The calls of a message in each scope."""
    engine, partition, item = (
        _only(rows, scope=name)["requests_per_message"]["median"] for name in ("engine", "partition", "item")
    )
    return (
        f"A message takes {partition:.1f} calls of a store or bus in partition scope, {item:.1f} in item scope and "
        f"{engine:.2f} in engine scope, which commits many at once."
    )


def azure_charge(rows: Rows) -> str:
    """What a message of a new key costs in each design."""
    at = {"kind": "new", "rtt_ms": 10.0, "concurrency": 64, "path": "worker", "settle_ms": []}
    plain = _only(rows, scope="partition", ledger=False, **at)
    ledger = _only(rows, scope="partition", ledger=True, **at)
    item = _only(rows, scope="item", **at)
    return (
        f"A message of a new key costs {plain['ru']:.0f} request units in partition scope, {ledger['ru']:.0f} with a "
        f"dispatch ledger, and {item['ru']:.0f} in item scope."
    )


def azure_keys(rows: Rows) -> str:
    """The requests of a message of a new key, and of one of a few that are busy."""
    cold, ten = (_only(rows, workload=name)["requests_per_message"] for name in ("cold", "ten keys"))
    return f"A message of a new key takes {cold:.1f} requests, one of ten busy keys {ten:.2f}."


def azure_rate(rows: Rows) -> str:
    """The rate ten milliseconds away, beside the bare SDKs."""
    row = _only(
        rows, scope="partition", kind="new", rtt_ms=10.0, concurrency=64, path="worker", settle_ms=[], ledger=False
    )
    return (
        f"Ten milliseconds away and with 64 in flight a worker handles {row['messages_per_s']:.0f} messages a second, "
        f"a loop over the bare SDKs {row['bare_messages_per_s']:.0f}."
    )


def streams(rows: Rows) -> str:
    """The entries of a step over a cell of 64, by store."""
    engine, cosmos, blobs = (
        f"{_only(rows, what=f'{store}: step of 64')['rate']['median']:,.0f}" for store in ("engine", "cosmos", "blobs")
    )
    return (
        f"In cells of 64 a processor takes {engine} entries a second on the engine, {cosmos} on Cosmos DB's emulator "
        f"and {blobs} on Blob Storage's."
    )


def pipeline(rows: Rows) -> str:
    """Half of the pages' waits, in order and otherwise."""
    ordered, none, sqlite, handlers = (
        f"{_only(rows, mode=mode)['p50_ms']['median']:.1f}" for mode in ("in_order 1000", "none", "sqlite", "handlers")
    )
    return (
        f"Half of the pages are durable in order within {ordered} ms, without order within {none}, with SQLite by hand "
        f"{sqlite}, as a message a word {handlers}."
    )


def recovery(rows: Rows) -> str:
    """The slowest page round the kills and otherwise."""
    whole = rows[0]
    near, far = (whole[name]["max_ms"] for name in ("around kills", "undisturbed"))
    return f"The slowest page around {whole['kills']} kills took {near:.0f} ms, the slowest of the others {far:.0f}."


def feed(rows: Rows) -> str:
    """A large feed beside the loop."""
    row = max(rows, key=lambda row: int(row["rows"]))
    return (
        f"{row['rows']:,} rows are in the queue after {row['seconds']['median']:.0f} s, start of Spark included; "
        f"a loop over the bare SDK in one process takes {row['bare_seconds']['median']:.0f} s."
    )


RESULTS: dict[str, tuple[str, Callable[[Rows], str]]] = {
    "w1": ("w1.json", w1),
    "peers": ("peers.json", peers),
    "profile": ("profile.json", profile),
    "telemetry": ("telemetry.json", telemetry),
    "looks": ("looks.json", looks),
    "scopes": ("scopes.json", scopes),
    "azure-charge": ("azure-latency.json", azure_charge),
    "azure-keys": ("azure.json", azure_keys),
    "azure-rate": ("azure-latency.json", azure_rate),
    "streams": ("streams.json", streams),
    "pipeline": ("pipeline.json", pipeline),
    "recovery": ("recovery.json", recovery),
    "feed": ("feed.json", feed),
}
"""By the name of the chart: the published file, and what makes the sentence."""
