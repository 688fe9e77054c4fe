"""A thousand messages under every kind of fault at once: none lost, none doubled, and every repetition has a reason."""

from __future__ import annotations

from typing import Any

import pytest

from outbox.azure.servicebus import bus as sending
from outbox.azure.servicebus import namespace
from tests.wire.on_azure.thousand import ACCOUNT_COUNT, DONE_WITHIN_S, WAIT_S, run, unseen_kinds


@pytest.mark.slow
@pytest.mark.timeout(DONE_WITHIN_S)
@pytest.mark.parametrize(
    ("ordering", "message_count", "ledger"),
    [
        pytest.param("unordered", 1_000, False, marks=pytest.mark.soak),
        pytest.param("unordered", 300, False, marks=pytest.mark.soak),
        ("per_key", 300, False),
        ("unordered", 300, True),
    ],
)
async def test_messages_under_every_kind_of_fault_are_neither_lost_nor_doubled(
    ordering: Any, message_count: int, ledger: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sending, "SEND_S", WAIT_S)
    monkeypatch.setitem(namespace._LINK, "timeout", WAIT_S)
    report = await run(message_count, 1, ordering, ledger=ledger)
    with capsys.disabled():
        print("", *report.lines(), sep="\n")
    assert (report.lost_count, report.doubled_count) == (0, 0)
    assert report.totals == {
        f"account-{first}": sum(range(first, message_count, ACCOUNT_COUNT)) for first in range(ACCOUNT_COUNT)
    }
    assert report.differences() == []
    assert unseen_kinds(report) <= ({"pause", "detach"} if message_count < 1_000 else set())
