"""What the demo says: only what its numbers bear out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from outbox.ops.values.status import QueueStatus, Status
from outbox.verify.recorded.verdict import USUAL, Counts, Verdict
from tools.demo.__main__ import parser, prepare, usual_kills
from tools.demo.data import Facts, read_facts
from tools.demo.phases import announcement, chunk_count, feed_rate
from tools.demo.report import Outcome, rows, verdict_of
from tools.demo.resending import RESENT_EVERY, copies_of_fed

ROOT = Path(__file__).resolve().parents[2]


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
    resent_count=4,
    kills=(),
    recoveries_s=(),
    handling=None,
    handled_before=8,
    handled_s=2.0,
    seconds=3.0,
)


JUDGED = Verdict(USUAL, (), Counts(duplicates=3), 0)


def test_only_what_the_host_has_recorded_as_a_duplicate_counts_as_suppressed() -> None:
    found = dict(rows(OUTCOME, JUDGED))
    assert found["duplicates suppressed"] == "3 messages ended as duplicates, says the host's history"
    assert dict(rows(OUTCOME, Verdict(USUAL, (), Counts(), 0)))["duplicates suppressed"].startswith("0 ")
    assert found["sent a second time"] == "4 of them in this run; 14 arrived in all"
    assert found["rejected by a handler"] == "1, dead-lettered; 1 copy of them likewise, for the same reason"


def test_the_rows_say_how_many_of_them_are_fed() -> None:
    found = dict(rows(OUTCOME, JUDGED))
    assert found["rows read"] == "12: 10 transfers, and 2 of them repeated"
    assert found["quarantined by Spark"].startswith("none; ") and found["transfers fed"] == "10"


def test_the_verdict_names_the_copies_that_changed_nothing() -> None:
    assert verdict_of(OUTCOME, JUDGED)[0].endswith("exactly once, although 4 copies arrived as well")
    single = dataclasses.replace(OUTCOME, fed={**OUTCOME.fed, "messages": 14})
    assert verdict_of(single, JUDGED)[0].endswith("exactly once")
    assert "BROKEN" in verdict_of(dataclasses.replace(OUTCOME, ok=False), JUDGED)[0]


def test_the_rate_is_that_of_this_run() -> None:
    assert dict(rows(OUTCOME, JUDGED))["messages handled"] == "31; 23 since feeding began, in 2.0 s: 12 a second"
    resumed = dataclasses.replace(OUTCOME, handled_before=31)
    assert dict(rows(resumed, JUDGED))["messages handled"] == "31, all of them before this run"


def test_postings_are_explained_where_the_numbers_add_up_and_only_there() -> None:
    kinds = "3 openings, 8 withdrawals, 7 deposits, 1 refunds, 1 refused withdrawals"
    assert dict(rows(OUTCOME, JUDGED))["ledger"] == f"20 postings: {kinds}"
    other_input = dataclasses.replace(OUTCOME, facts=Facts(12, 10, ("a", "b")))
    assert dict(rows(other_input, JUDGED))["ledger"] == "20 postings"


def test_a_page_explains_the_figures_of_the_usual_run(tmp_path: Path) -> None:
    _, transfers = prepare(parser().parse_args(["--folder", str(tmp_path)]))
    facts = read_facts(transfers)
    malformed = transfers.read_text().count(",a lot\n")
    fed = facts.id_count - malformed
    page = " ".join((ROOT / "docs/what-was-run.md").read_text().split())
    assert (
        f"{facts.row_count:,} rows: {facts.id_count:,} transfers and {facts.row_count - facts.id_count} repeated rows. "
        f"Spark drops the repeated rows, sets {malformed} malformed ones aside and feeds {fed:,} transfers. The demo "
        f"sends {-(-fed // RESENT_EVERY)} of these a second time"
    ) in page


def test_copies_of_fed_messages_are_equal_to_them_in_id_body_and_time(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    fed = [(f"t{n:02d}", f'{{"id":"t{n:02d}"}}', 1_700_000_000_123) for n in range(2 * RESENT_EVERY + 1)]
    for number, part in enumerate((fed[::2], fed[1::2])):
        (tmp_path / "first" / "stage-a").mkdir(parents=True, exist_ok=True)
        columns = dict(zip(("id", "body", "created_ms"), zip(*part, strict=True), strict=True))
        parquet.write_table(arrow.table(columns), tmp_path / "first" / "stage-a" / f"{number}.parquet")
    (tmp_path / "first" / "manifest.json").write_text(
        '{"staged": [{"name": "stage-a/0.parquet"}, {"name": "stage-a/1.parquet"}]}'
    )
    copies = copies_of_fed(tmp_path, "Transfer")
    assert [(copy.id, bytes(copy.body).decode(), round(copy.created * 1_000)) for copy in copies if copy.created] == [
        fed[0],
        fed[RESENT_EVERY],
        fed[2 * RESENT_EVERY],
    ]
    assert {copy.type for copy in copies} == {"Transfer"}


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
