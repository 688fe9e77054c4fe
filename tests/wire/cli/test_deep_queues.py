"""A message behind thousands of others is found by its id, or what was not looked through is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from time import time

import pytest

from outbox.engine.entities import QueueSettings
from outbox.message import Message
from outbox.ops.messages import store as store_messages
from tests.wire.cli.planted import Run, Site

AHEAD = 2_300
"""More than one look of the bus shows."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()

    def plant() -> None:
        site.engine.declare(QueueSettings("deep"), QueueSettings("other"), QueueSettings("keyed", ordering="per_key"))
        send = site.engine.broker.send
        for queue in ("deep", "keyed"):
            key = "one" if queue == "keyed" else ""
            send(queue, [Message(body=b"{}", outbox_id=f"ahead-{n}", session_id=key) for n in range(AHEAD)])
            send(queue, [Message(body=b"{}", outbox_id=f"last-of-{queue}", causation_id="its-cause", session_id=key)])
        later_ms = round((time() + 3_600) * 1_000)
        for id in ("later-1", "later-2", "later-10"):
            send("deep", [Message(body=b"{}", outbox_id=id)], due_ms=later_ms)
        send("deep", [Message(body=b"{}", outbox_id=f"behind-{n}") for n in range(300)])

    with site:
        site.thread.run(plant)
        site.prepare()
        yield site


def cut_at(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let a command look through so many messages of a queue."""
    monkeypatch.setattr(store_messages, "SCAN_COUNT_MAX", count)
    monkeypatch.setattr(store_messages, "SCAN_COUNT_MIN", count)


@pytest.mark.parametrize("queue", ["deep", "keyed"])
def test_what_waits_behind_thousands_is_shown_and_traced(site: Site, run: Run, queue: str) -> None:
    code, said = run("message", "show", f"last-of-{queue}")
    assert code == 0 and f"last-of-{queue} in {queue}: waiting" in said
    code, said = run("message", "trace", f"last-of-{queue}")
    assert code == 0 and "its-cause" in said and f"last-of-{queue}: waiting in {queue}" in said
    code, said = run("message", "trace", "its-cause")
    assert code == 0 and f"last-of-{queue}" in said  # an effect is found by its cause


def test_what_is_scheduled_behind_thousands_is_due_or_cancelled(site: Site, run: Run) -> None:
    assert run("schedule", "now", "deep", "later-1") == (0, "later-1 in deep is due now\n")
    assert run("schedule", "cancel", "deep", "later-2") == (0, "cancelled later-2 in deep\n")
    assert run("message", "show", "later-2")[0] == 1


def test_where_there_is_more_than_is_looked_through_nothing_is_said_to_be_absent(
    site: Site, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_at(monkeypatch, 400)
    code, said = run("message", "show", "last-of-deep")
    assert code == 1 and "no queue holds" not in said and "never sent" not in said
    found = re.search(r"`outbox (message show --queue deep --after \d+ last-of-deep)`", said)
    assert found is not None, said
    for verb in ("cancel", "now"):
        code, said = run("schedule", verb, "deep", "later-10")
        assert code == 1 and f"`outbox schedule {verb} --after " in said and "never" not in said
    code, said = run("message", "trace", "last-of-deep")
    assert code == 1 and "`outbox message show --queue deep --after " in said
    assert "in no queue and no dead letter" not in said
    assert "in no queue" not in run("message", "trace", "ahead-5")[1]
    words = found[1].split()
    for _ in range(2 + AHEAD // 200):  # what is printed leads there
        code, said = run(*words)
        if code == 0:
            break
        again = re.search(r"`outbox (message show [^`]*)`", said)
        assert again is not None, said
        words = again[1].split()
    assert code == 0 and "last-of-deep in deep: waiting" in said


def test_a_beginning_stands_for_an_id_only_where_all_was_looked_through(
    site: Site, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_at(monkeypatch, 200)
    [number] = [task.sequence for task in site.engine.broker.peek("deep", AHEAD + 1, 1)]
    code, said = run("schedule", "cancel", "deep", "later-", "--after", str(number))
    assert code == 1 and "give the whole id if this is the beginning of one" in said
    code, said = run("schedule", "cancel", "deep", "later-10", "--after", str(number))
    assert code == 0 and said.startswith("cancelled later-10 in deep; looked through up to number ")


def test_a_search_makes_a_limited_number_of_requests(site: Site, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_at(monkeypatch, 1_000)
    site.bus_faults.asked.clear()
    assert run("message", "show", "not-sent", "--queue", "deep")[0] == 1
    count = site.bus_faults.asked.count("manage/peek-message")
    assert 0 < count <= 1_000 // 200 + 2, site.bus_faults.asked


def test_a_number_of_a_queue_needs_the_queue(run: Run) -> None:
    with pytest.raises(SystemExit):
        run("message", "show", "last-of-deep", "--after", "5")
