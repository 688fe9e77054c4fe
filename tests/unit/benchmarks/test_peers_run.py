"""The run beside DBOS: what it makes of a peer's process, and of rates.  The tests themselves do without DBOS."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks import peers_run
from benchmarks.peers_run import PeerFailed, ratios, reply
from tests.unit.benchmarks.test_benchmarks import ONE as ANOTHER

ONE = replace(ANOTHER, system="dbos", variant="call-1", flushes_per_message=5.0)


def test_a_ratio_is_taken_within_a_repeat_at_as_many_in_flight() -> None:
    found = []
    for ours, dbos in ((1000.0, 10.0), (2000.0, 40.0)):
        found += [replace(ONE, system="outbox", variant="one", messages_per_s=ours), replace(ONE, messages_per_s=dbos)]
        found += [
            replace(ONE, system="outbox", variant="batch64", in_flight=64, messages_per_s=ours * 9),
            replace(ONE, variant="call-64", in_flight=64, messages_per_s=dbos),
        ]
    given = ratios(found)
    assert given["dbos", "call-1"] == [100.0, 50.0] and given["dbos", "call-64"] == [900.0, 450.0]
    assert given["outbox", "batch64"] == [1.0, 1.0]


def test_the_last_line_of_a_peer_is_its_measurement() -> None:
    answer = {"measurement": ONE, "versions": {"dbos": "3.4.0"}, "duplicate_count": 7}
    line = msgspec.json.encode(answer).decode()
    found = reply([sys.executable, "-c", "import sys; print('chatter'); print(sys.argv[1])", line])
    assert (found.measurement, found.duplicate_count) == (ONE, 7)


def test_a_peer_that_fails_its_check_is_refused_with_what_it_said() -> None:
    with pytest.raises(PeerFailed, match=r"exit code 1(.|\n)*found 1, wanted 2"):
        reply([sys.executable, "-c", "raise AssertionError('found 1, wanted 2')"])


def test_a_peer_without_a_measurement_is_refused() -> None:
    with pytest.raises(PeerFailed, match="no measurement"):
        reply([sys.executable, "-c", "print('{}')"])


def test_a_peer_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_run, "PEER_RUN_S_MAX", 0.5)
    with pytest.raises(PeerFailed, match="take fewer --peer-messages"):
        reply([sys.executable, "-c", "import time; time.sleep(60)"])


def test_every_variant_of_the_driver_is_one_of_the_peer() -> None:
    source = Path(peers_run.__file__).parent / "peers" / "dbos_peer.py"
    (line,) = [line for line in source.read_text().splitlines() if line.startswith("VARIANTS = ")]
    assert sorted(peers_run.Dbos.VARIANTS) == sorted(name for name in line.split('"') if "-" in name)
