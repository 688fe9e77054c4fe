"""What a command says to do about a dead letter, how names of subscriptions are read, and looks at many queues."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from pathlib import Path

import pytest

from outbox.errors import Refused
from outbox.guards import GuardView
from outbox.message import Message
from outbox.ops.cli.parser import ON_AZURE, make_parser
from outbox.ops.dead_letters.views import cure_of
from outbox.ops.messages.doctor import of_status
from outbox.ops.shared.asking import queue, with_folder
from outbox.ops.values.status import Status
from outbox.ports import SUBSCRIPTIONS, DeadLetterEntry
from outbox.resubmission import REJECTED
from outbox.runtime.gather import COUNT_MAX, side_by_side

AUDIT = f"news{SUBSCRIPTIONS}audit"
ANEW = "`outbox send orders BODY --type TYPE --id NEW-ID`"
AGAIN, EDITED = "`outbox dead-letters resubmit orders m1`", "`outbox dead-letters resubmit --body FILE orders m1`"
DISCARD = "`outbox dead-letters discard orders m1`"


@pytest.mark.parametrize(
    ("reason", "description", "begins", "has"),
    [
        ("failed", "ValueError: no", AGAIN, DISCARD),
        ("undecodable", "does not fit Order", DISCARD, ANEW),
        ("undecodable", REJECTED, EDITED, DISCARD),
        ("too-old", "created long ago", "look at the state that it would have changed", ANEW),
        ("too-old", REJECTED, EDITED, DISCARD),
        ("edit-without-record", "nothing is on record", "look at the state", ANEW),
        ("payload-differs", "used twice", "the first message of this id counts", ANEW),
        ("MaxDeliveryCountExceeded", "", AGAIN, DISCARD),
        ("no-blob-store", "too large", AGAIN, DISCARD),
    ],
)
def test_a_cure_is_never_one_that_is_refused(reason: str, description: str, begins: str, has: str) -> None:
    dead = DeadLetterEntry("orders", 1, Message(body=b"", outbox_id="m1"), reason, description, 0, 0)
    cure = cure_of("m1", dead)
    assert cure.startswith(begins) and has in cure
    assert AGAIN not in cure or reason not in ("too-old", "payload-differs") or description == REJECTED


@pytest.mark.parametrize(
    ("queue", "reason", "description", "is_editable"),
    [
        ("orders", "no such article", REJECTED, True),
        ("orders", "undecodable", REJECTED, True),
        ("orders", "failed", "ValueError: no", True),
        ("orders", "MaxDeliveryCountExceeded", "", False),
        (AUDIT, "no such article", REJECTED, False),
    ],
)
def test_a_cure_names_the_edit_where_it_may_help(queue: str, reason: str, description: str, is_editable: bool) -> None:
    cure = cure_of("m1", DeadLetterEntry(queue, 1, Message(body=b"", outbox_id="m1"), reason, description, 0, 0))
    assert ("--body FILE" in cure) is is_editable
    assert cure.startswith(EDITED) is (is_editable and description == REJECTED), "it would come straight back"


@pytest.mark.parametrize(
    ("folder", "text", "shown"),
    [
        ("a b", "`outbox queue resume q`", "`outbox queue resume --data 'a b' q`"),
        (
            "d",
            "outbox dead-letters discard q m or outbox send q",
            "outbox dead-letters discard --data d q m or outbox send --data d q",
        ),
        ("d", "outbox run APP --data FOLDER", "outbox run APP --data d"),
        ("d", "outbox queue peek --data x q; outbox metrics-of", "outbox queue peek --data x q; outbox metrics-of"),
        (None, "outbox queue resume q", "outbox queue resume q"),
    ],
)
def test_a_cure_names_the_folder_that_was_asked(folder: str | None, text: str, shown: str) -> None:
    assert with_folder(Namespace(data=None if folder is None else Path(folder), taking=ON_AZURE), text) == shown


def test_a_command_takes_its_folder_before_its_arguments() -> None:
    options = make_parser().parse_args(["dead-letters", "resubmit", "--data", "d", "orders", "m1", "--body", "f"])
    assert (options.data, options.queue, options.id) == (Path("d"), "orders", "m1")


def test_what_is_right_for_a_subscription_is_sent_to_its_topic() -> None:
    dead = DeadLetterEntry(AUDIT, 1, Message(body=b"", outbox_id="m1"), "undecodable", "", 0, 0)
    assert "outbox send news BODY" in cure_of("m1", dead)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("orders", "orders"),
        ("news/subscriptions/audit", AUDIT),
        ("news/SUBSCRIPTIONS/audit", AUDIT),
        (AUDIT, AUDIT),
        ("a/b/Subscriptions/c/subscriptions/d", "a/b/Subscriptions/c/subscriptions/d"),
    ],
)
def test_a_subscription_is_one_in_any_case(text: str, meant: str) -> None:
    assert queue(text) == meant


def test_an_open_breaker_is_a_finding_and_a_rate_at_work_is_none() -> None:
    guards = [
        GuardView("payments", "breaker", "open", "2 of 2 attempts failed", 30.0, 4),
        GuardView("stock", "breaker", "closed", "", 0.0, 0),
        GuardView("printer", "rate", "open", "5 messages wait for their place", 30.0, 4),
    ]
    found = [finding for finding in of_status(Status({}, 0, guards=guards), hosted=True) if finding.level != "ok"]
    assert [(finding.about, finding.level) for finding in found] == [("payments", "warning")]
    assert "the breaker is open, 30.0 s more: 2 of 2 attempts failed" in found[0].what


async def test_many_are_asked_at_once_and_answer_in_order() -> None:
    under_way = most = 0

    async def ask(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(30 - number):  # the first takes longest
            await asyncio.sleep(0)
        under_way -= 1
        return number

    assert await side_by_side(range(30), ask) == list(range(30)) and most == COUNT_MAX


async def test_one_that_fails_ends_the_look_with_its_own_error() -> None:
    async def ask(number: int) -> int:
        if number == 2:
            raise Refused("no such queue")
        await asyncio.sleep(60)
        return number

    with pytest.raises(Refused, match="no such queue"):
        await side_by_side(range(5), ask)
