"""W1 on us, on SQLite by hand and on DBOS in one run, repeats interleaved so that noise of the machine hits all alike.

    python -m benchmarks.peers_run [--repeats 3] [--messages 20000] [--peer-messages 500] [--output FOLDER]

DBOS runs in an environment and in processes of its own, on fewer messages: W1's 20,000 would take it minutes a run.
Rates are compared between systems with as many in flight: of each repeat the quotient, of the quotients the median
and the extremes.  Writes peers.json and peers.txt into the folder; a row has its `message_count` and `outbox_ratio`,
how many times its messages a second outbox handles.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from benchmarks import run
from benchmarks.peers import environment
from outbox_bench import ours, report, sqlite, w1
from outbox_bench.apart import Apart
from outbox_bench.measure import MESSAGE_COUNT, Measurement
from tools.setup import SetupFailed

PEER_MESSAGE_COUNT = 500
PEER_RUN_S_MAX = 600.0
ERROR_LINES = 20

Key = tuple[str, str]  # system and variant


class Reply(msgspec.Struct):
    """What a peer's process prints."""

    measurement: Measurement
    versions: dict[str, str]
    duplicate_count: int


class PeerFailed(Exception):
    """A peer's process ended without a measurement; the text is the end of what it said."""


class Dbos:
    """DBOS as a benchmark of ours: each run is a process of its own environment, on its own number of messages."""

    SYSTEM: str = "dbos"
    VARIANTS: tuple[str, ...] = ("call-1", "queue-1", "call-64", "queue-64")

    def __init__(self, python: Path, message_count: int) -> None:
        self._python = python
        self._message_count = message_count
        self.last: Reply | None = None

    def run(self, variant: str, folder: Path, message_count: int) -> Measurement:
        """Run `variant` in `folder`; the number that the others take is not used."""
        module = "benchmarks.peers.dbos_peer"
        self.last = reply([str(self._python), "-m", module, variant, str(folder), str(self._message_count)])
        return self.last.measurement


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    run.SCRATCH.mkdir(exist_ok=True)
    try:
        dbos = Dbos(environment.ready(), options.peer_messages)
        circumstances = report.circumstances(run.SCRATCH)
        found = w1.measurements(entrants(dbos), options.repeats, options.messages, run.SCRATCH)
    except (SetupFailed, PeerFailed) as failure:
        print(f"bench-peers: {failure}", file=sys.stderr)
        return 1
    rows = report.rows(found)
    figures = ratios(found)
    for row, (key, ratio) in zip(rows, figures.items(), strict=True):
        row["message_count"] = options.peer_messages if key[0] == dbos.SYSTEM else options.messages
        row["outbox_ratio"] = report.spread(ratio)
    text = report.table(rows) + "\n\n" + ratio_table(rows)
    about = [*explained(options, dbos), *circumstances]
    print(report.publish("peers", rows, about, options.output, text))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers_run", description="Run W1 beside DBOS.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--messages", type=int, default=MESSAGE_COUNT, help="for outbox and SQLite")
    parser.add_argument("--peer-messages", type=int, default=PEER_MESSAGE_COUNT, help="for DBOS")
    parser.add_argument("--output", type=Path, default=run.PUBLISHED)
    return parser.parse_args(arguments)


def entrants(dbos: Dbos) -> list[w1.Entrant]:
    """Who takes part: what flushes every commit, with 1 and with 64 in flight."""
    us, by_hand = Apart(ours), Apart(sqlite)
    one: list[w1.Entrant] = [(us, "one"), (by_hand, "one-full"), (dbos, "call-1"), (dbos, "queue-1")]
    many: list[w1.Entrant] = [(us, "batch64"), (by_hand, "batch64-full"), (dbos, "call-64"), (dbos, "queue-64")]
    return one + many


def reply(command: list[str]) -> Reply:
    """Run a peer's process to its end and read its last line."""
    try:
        done = subprocess.run(
            command,
            cwd=run.ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PEER_RUN_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as failure:
        raise PeerFailed(f"no answer after {PEER_RUN_S_MAX:.0f} s; take fewer --peer-messages") from failure
    said = "\n".join(done.stderr.splitlines()[-ERROR_LINES:])
    if done.returncode:
        raise PeerFailed(f"the peer ended with exit code {done.returncode}:\n{said}")
    try:
        return msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=Reply)
    except msgspec.DecodeError as failure:
        raise PeerFailed(f"the peer's last line is no measurement ({failure}):\n{said}") from failure


def ratios(found: Iterable[Measurement]) -> dict[Key, list[float]]:
    """Of each system and variant: outbox's messages a second by its own, repeat by repeat, at as many in flight."""
    rates: dict[Key, list[float]] = {}
    in_flight: dict[Key, int] = {}
    for each in found:
        key = (each.system, each.variant)
        rates.setdefault(key, []).append(each.messages_per_s)
        in_flight[key] = each.in_flight
    our_rates = {in_flight[key]: rates[key] for key in rates if key[0] == ours.SYSTEM}
    return {
        key: [our_rate / rate for our_rate, rate in zip(our_rates[in_flight[key]], rates[key], strict=True)]
        for key in rates
    }


def ratio_table(rows: list[report.Row]) -> str:
    lines = ["How many times the messages/s of each outbox handles, at as many in flight:"]
    for row in rows:
        if row["system"] != ours.SYSTEM:
            name = f"{row['system']} {row['variant']}, {row['in_flight']} in flight"
            lines.append(f"  {name:<32}{report.cell(row['outbox_ratio'], 2)}")
    return "\n".join(lines)


def explained(options: argparse.Namespace, dbos: Dbos) -> list[str]:
    """What the figures are of."""
    versions, duplicate_count = {}, 0
    if dbos.last:
        versions, duplicate_count = dbos.last.versions, dbos.last.duplicate_count
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [
        f"W1: {options.messages:,} messages over 1,000 keys on outbox and SQLite.",
        f"On DBOS {options.peer_messages:,} messages, over as many fewer keys.",
        f"Peer: {named}; both of its databases on SQLite with WAL, every commit flushed.",
        "Postgres, which DBOS recommends for production, is not measured.",
        "call: threads call a workflow whose id is the message's. queue: all is enqueued before the clock starts.",
        f"Each DBOS run then sent {duplicate_count} ids again and checked that nothing changed.",
        f"Median of {options.repeats} interleaved repeats [least..greatest].",
    ]


if __name__ == "__main__":
    sys.exit(main())
