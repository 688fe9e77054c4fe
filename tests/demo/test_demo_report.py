"""What the demo says: only what its numbers bear out."""

from __future__ import annotations

import dataclasses

import pytest

from outbox.ops.values import QueueStatus, Status
from tools.demo.__main__ import parser, usual_kills
from tools.demo.data import Facts
from tools.demo.phases import announcement, chunk_count, feed_rate
from tools.demo.report import Outcome, rows


def queue(received: int, dead_letters: int = 0) -> QueueStatus:
    return QueueStatus(0, 0, 0, dead_letters, None, received)


# 10 transfers, one of them rejected and one without money; 8 withdrawals, one of which comes back.
OUTCOME = Outcome(
    ok=True,
    facts=Facts(12, 10, ("a", "b", "c")),
    fed={"messages": 10, "duplicates": 2, "quarantined": {}},
    drained={},
    verdict={},
    status=Status(
        {
            "accounts": queue(8),  # opened and closed, and sent again by a second run
            "transfers": queue(14, dead_letters=2),  # four copies, one of them of the rejected transfer
            "deposits": queue(8),
            "refunds": queue(1),
            "ledger": queue(20),
        },
        0,
    ),
    refused_count=1,
    kills=(),
    recoveries_s=(),
    handling=None,
    handled_before=8,
    handled_s=2.0,
    seconds=3.0,
)


def test_only_transfers_that_came_again_without_effect_count_as_suppressed() -> None:
    found = dict(rows(OUTCOME))
    assert found["duplicates suppressed"] == "3 transfers that had arrived before"
    assert found["rejected by a handler"] == "1, dead-lettered"


def test_the_rate_is_that_of_this_run() -> None:
    assert dict(rows(OUTCOME))["messages handled"] == "31; 23 since feeding began, in 2.0 s: 12 a second"
    resumed = dataclasses.replace(OUTCOME, handled_before=31)
    assert dict(rows(resumed))["messages handled"] == "31, all of them before this run"


def test_postings_are_explained_where_the_numbers_add_up_and_only_there() -> None:
    kinds = "3 openings, 8 withdrawals, 7 deposits, 1 refunds, 1 refused withdrawals"
    assert dict(rows(OUTCOME))["ledger"] == f"20 postings: {kinds}"
    other_input = dataclasses.replace(OUTCOME, facts=Facts(12, 10, ("a", "b")))
    assert dict(rows(other_input))["ledger"] == "20 postings"


@pytest.mark.parametrize(
    ("done", "kill_count", "said"),
    [
        (0, 2, "feeding; the host will be killed 2 times meanwhile"),
        (900, 1, "feeding; 900 messages are through already; the host will be killed once meanwhile"),
        (2_000, 0, "feeding; 2,000 messages are through already; no kill is planned behind them"),
        (0, 0, "feeding"),
    ],
)
def test_only_kills_that_are_still_to_come_are_announced(done: int, kill_count: int, said: str) -> None:
    assert announcement("feeding", done, kill_count) == said


@pytest.mark.parametrize(
    ("row_count", "kills", "chunks", "feed_s"),
    [(10, (1, 1), 1, 3), (2_000, (1, 1), 2, 3), (20_000, (2, 3), 4, 8), (200_000, (2, 3), 4, 8)],
)
def test_a_small_run_waits_for_less(row_count: int, kills: tuple[int, int], chunks: int, feed_s: float) -> None:
    assert usual_kills(row_count) == kills and chunk_count(row_count) == chunks
    assert row_count / feed_rate(row_count) == pytest.approx(feed_s)
    assert parser().parse_args(["--kills", "2"]).kills == (2, 2) and parser().parse_args([]).kills is None
