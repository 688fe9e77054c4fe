"""Answers that never came, processes that died: what took effect is told from what did not."""

from __future__ import annotations

from msgspec.structs import replace

from outbox.verify.guarantees import check
from outbox.verify.recorded.events import (
    Buried,
    Change,
    Claim,
    Commit,
    Cut,
    Delivered,
    Emitted,
    Ended,
    Event,
    Fail,
    Life,
    Ok,
    Quiesce,
    Tally,
)
from outbox.verify.recorded.verdict import Finding
from tests.unit.verify.histories import (
    IN,
    NEXT,
    calm,
    changed,
)


def first(events: list[Event], *, alone: bool = False) -> Finding:
    """The first finding, which there must be."""
    verdict = check(events, alone=alone)
    assert not verdict.ok, verdict.text
    return verdict.findings[0]


# Answers that never came


def unanswered(*after: Event) -> list[Event]:
    """A commit of one message whose process died before the answer."""
    return [
        Life(boot="b", is_empty=True),
        Claim(deliveries=[Delivered("t0", IN, 1)]),
        Commit(
            op=1,
            ended=[Ended(IN, 1, "t0")],
            changes=[Change("A:1", 0, 1, 7)],
            outputs=[Emitted("k-0", NEXT, 1, "t0")],
            applied=["k"],
        ),
        Life(boot="b", sequence=2),
        *after,
    ]


def test_a_commit_without_an_answer_took_effect_when_its_version_is_followed() -> None:
    follow: list[Event] = [Commit(op=1, changes=[Change("A:1", 1, 2, 8)], applied=["m"]), Ok(op=1)]
    verdict = check(unanswered(*follow, Quiesce(queues=[IN])))
    assert verdict.ok and (verdict.counts.optional, verdict.counts.resolved) == (1, 1)


def test_a_commit_without_an_answer_took_effect_when_its_output_is_there() -> None:
    follow: list[Event] = [
        Claim(deliveries=[Delivered("k-0", NEXT, 2, outside=False, digest=1)]),
        Commit(op=1, ended=[Ended(NEXT, 2, "k-0")], applied=["m"]),
        Ok(op=1),
    ]
    verdict = check(unanswered(*follow, Quiesce(queues=[IN, NEXT])))
    assert verdict.ok and verdict.counts.resolved == 1


def test_a_commit_without_an_answer_did_not_take_effect_when_its_message_is_redelivered() -> None:
    again = unanswered()[1:3]
    verdict = check(unanswered(*again, Ok(op=1), Quiesce(queues=[IN])))
    assert verdict.ok and (verdict.counts.optional, verdict.counts.resolved, verdict.counts.applied) == (1, 0, 1)


def test_effects_of_a_commit_that_failed_are_found() -> None:
    events = [*unanswered()[:3], Claim(deliveries=[Delivered("k-0", NEXT, 2, outside=False, digest=1)]), Fail(op=1)]
    found = first([*events, Quiesce(queues=[])])
    assert (found.what, found.line, found.against) == ("ghost commit", 5, 3)


def test_of_two_that_may_have_made_a_version_one_did() -> None:
    two = [Commit(op=n, changes=[Change("A:1", 0, 1, 7)], applied=[f"{n}"]) for n in (1, 2)]
    follow: list[Event] = [Commit(op=3, changes=[Change("A:1", 1, 2, 8)], applied=["m"]), Ok(op=3)]
    begun: list[Event] = [Life(is_empty=True), *two, *follow]
    assert check([*begun, Fail(op=1), Ok(op=2), Quiesce(queues=[])]).ok
    assert first([*begun, Fail(op=1), Fail(op=2), Quiesce(queues=[])]).what == "ghost commit"
    assert first([*begun, Ok(op=1), Ok(op=2), Quiesce(queues=[])]).what == "forked version"


def test_of_two_that_may_have_sent_an_output_one_did() -> None:
    two = [Commit(op=n, outputs=[Emitted("k-0", NEXT, 1, "x")], applied=["k"]) for n in (1, 2)]
    follow: list[Event] = [
        Claim(deliveries=[Delivered("k-0", NEXT, 2, outside=False, digest=1)]),
        Commit(op=3, ended=[Ended(NEXT, 2, "k-0")], applied=["m"]),
        Ok(op=3),
    ]
    begun: list[Event] = [Life(is_empty=True), *two, *follow]
    assert check([*begun, Fail(op=1), Ok(op=2), Quiesce(queues=[NEXT])]).ok
    assert first([*begun, Fail(op=1), Fail(op=2), Quiesce(queues=[NEXT])]).what == "ghost commit"
    assert first([*begun, Ok(op=1), Ok(op=2), Quiesce(queues=[NEXT])]).what == "applied twice"


def test_attempts_that_differ_are_found_when_determinism_is_asked_for() -> None:
    ended = [Ended(IN, 1, "t0")]
    one = Commit(op=1, ended=ended, changes=[Change("A:1", 0, 1, 7)], applied=["k"])
    other = replace(one, op=2, changes=[Change("A:1", 0, 1, 8)])
    events: list[Event] = [Life(), one, Fail(op=1), other, Ok(op=2), Quiesce(queues=[])]
    assert check(events).ok
    found = check(events, guarantees=("deterministic",)).findings[0]
    assert (found.what, found.line, found.against) == ("attempts differ", 4, 2)
    assert check(changed(events, 3, changes=one.changes), guarantees=("deterministic",)).ok


# Lives


def committed_once() -> list[Event]:
    return [
        Life(boot="b", is_empty=True, tallies={IN: Tally(0, 0)}),
        Claim(deliveries=[Delivered("t0", IN, 1)]),
        Commit(op=1, ended=[Ended(IN, 1, "t0")], changes=[Change("A:1", 0, 1, 7)], applied=["k"]),
        Ok(op=1),
    ]


def test_an_acknowledged_commit_that_the_system_has_lost_is_found_at_its_restart() -> None:
    found = first([*committed_once(), Life(boot="c", tallies={IN: Tally(1, 0)}), Quiesce(queues=[IN])])
    assert (found.what, found.line) == ("lost commit", 5)
    assert check([*committed_once(), Life(boot="c", tallies={IN: Tally(1, 1)}), Quiesce(queues=[IN])]).ok


FOLLOWS_UNSEEN = Commit(op=1, changes=[Change("A:1", 2, 3, 7)], applied=["m"])


def test_a_change_whose_line_a_power_loss_took_is_distinguished_from_a_fault() -> None:
    after: list[Event] = [Life(boot="another", sequence=9), FOLLOWS_UNSEEN, Ok(op=1), Quiesce(queues=[IN])]
    verdict = check([*committed_once(), *after])
    assert verdict.ok and verdict.counts.unrecorded == 1


def test_a_killed_process_loses_no_line_so_a_version_unheard_of_is_a_fault() -> None:
    after: list[Event] = [Life(boot="b", sequence=9), FOLLOWS_UNSEEN, Ok(op=1), Quiesce(queues=[IN])]
    assert first([*committed_once(), *after]).what == "ghost version"


def test_a_history_may_begin_in_the_middle() -> None:
    events: list[Event] = [
        Life(boot="b", sequence=40, tallies={IN: Tally(30, 20)}),
        Claim(deliveries=[Delivered("x-0", NEXT, 39, outside=False)]),
        Commit(op=1, ended=[Ended(NEXT, 39, "x-0")], changes=[Change("A:1", 5, 6, 7)], applied=["k"]),
        *(Ok(op=1), Quiesce(queues=[IN, NEXT])),
    ]
    verdict = check(events)
    assert verdict.ok and verdict.counts.unrecorded == 0


def test_what_left_unseen_is_reported_and_lost_where_no_other_takes_messages() -> None:
    events = changed(calm(), len(calm()) - 1, tallies={IN: Tally(9, 9)})
    verdict = check(events)
    assert verdict.ok and verdict.counts.unexplained == 3
    assert first(events, alone=True).what == "lost message"


def test_a_dead_letter_may_be_resubmitted_and_is_then_no_lost_commit() -> None:
    events: list[Event] = [
        Life(is_empty=True),
        Claim(deliveries=[Delivered("t0", IN, 1)]),
        *(Commit(op=1, buried=[Buried(IN, 1, "t0", "no")], refused=["k"]), Ok(op=1)),
        Claim(deliveries=[Delivered("t0", IN, 1, attempt=1)]),
        *(Commit(op=2, ended=[Ended(IN, 1, "t0")], applied=["k"]), Ok(op=2), Quiesce(queues=[IN])),
    ]
    assert check(events).ok
    again = changed(events, 4, deliveries=[Delivered("t0", IN, 1)])
    assert first(again).what == "lost commit"


def test_a_dead_letter_of_the_systems_own_may_be_resubmitted() -> None:
    events: list[Event] = [
        Life(is_empty=True),
        *(Claim(deliveries=[Delivered("t0", IN, 1)]), Quiesce(queues=[IN], dead={IN: [1]})),
        Claim(deliveries=[Delivered("t0", IN, 1, attempt=1)]),
        *(Commit(op=2, ended=[Ended(IN, 1, "t0")], applied=["k"]), Ok(op=2), Quiesce(queues=[IN])),
    ]
    assert check(events).ok
    assert first(changed(events, 3, deliveries=[Delivered("t0", IN, 1)])).what == "lost commit"


def test_what_was_not_due_at_one_quiesce_is_owed_at_the_next() -> None:
    made = Commit(op=1, outputs=[Emitted("k-0", NEXT, 1, "x", due_ms=50)], applied=["k"])
    events: list[Event] = [Life(is_empty=True), made, Ok(op=1), Quiesce(at_ms=10, queues=[NEXT])]
    assert check(events).ok
    found = first([*events, Quiesce(at_ms=60, queues=[NEXT])])
    assert (found.what, found.line) == ("lost output", 5)


def test_a_topic_owes_its_output_to_every_subscription() -> None:
    paths = ["t/Subscriptions/a", "t/Subscriptions/b"]
    events: list[Event] = [
        Life(is_empty=True),
        *(Commit(op=1, outputs=[Emitted("k-0", "t", 1, "x")], applied=["k"]), Ok(op=1)),
    ]
    for n, path in enumerate(paths, 2):
        events += [Claim(deliveries=[Delivered("k-0", path, n, outside=False, digest=1)])]
        events += [Commit(op=n, ended=[Ended(path, n, "k-0")], applied=[path]), Ok(op=n)]
    assert check([*events, Quiesce(queues=paths)]).ok
    assert first([*events[:-3], Quiesce(queues=paths)]).what == "lost output"


def test_a_life_after_a_cut_does_not_blame_the_system_for_missing_lines() -> None:
    life = Life(boot="b", sequence=9)
    events = [*committed_once(), Cut(why="full"), life, FOLLOWS_UNSEEN, Ok(op=1), Quiesce(queues=[IN])]
    assert [finding.what for finding in check(events).findings] == ["cut"]
