"""Answers that never came, processes that died: what took effect is told from what did not."""

from __future__ import annotations

import pytest
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
    Held,
    Life,
    Ok,
    Push,
    Quiesce,
    Seen,
    Settled,
    Tally,
    Unknown,
)
from tests.unit.verify.histories import IN, NEXT, calm, changed, first

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


def test_a_commit_without_an_answer_did_not_take_effect_when_its_message_is_still_held() -> None:
    held = [Held(deliveries=[(IN, 1)]), Claim(deliveries=[Delivered("k-0", NEXT, 9, outside=False, digest=1)])]
    assert first(unanswered(*held, Quiesce(queues=[]))).what == "ghost output"


def test_what_was_being_sent_and_not_acknowledged_need_not_have_been_accepted() -> None:
    push = Push(op=1, outputs=[Emitted("x", IN)])
    died: list[Event] = [Life(boot="b", is_empty=True), push, Life(boot="b")]
    for answers in (died[2:], [Fail(op=1)], [Unknown(op=1)]):
        assert check([*died[:2], *answers, Quiesce(queues=[IN])]).ok
    assert first([*died[:2], Ok(op=1), *died[2:], Quiesce(queues=[IN])]).what == "lost message"


def test_what_was_settled_perhaps_in_one_life_is_not_so_in_all_later_ones() -> None:
    settled = Settled(op=1, queue=IN, sequence=1, id="t0", how="complete")
    claim, life = Claim(deliveries=[Delivered("t0", IN, 1)]), Life(boot="b")
    events: list[Event] = [life, claim, settled, life, claim, life, Quiesce(queues=[IN])]
    assert first(events).what == "lost message"
    assert first([life, claim, settled, Fail(op=1), life, Quiesce(queues=[IN])]).what == "lost message"


def test_what_leaves_has_not_left_early_where_a_commit_that_died_may_have_made_it() -> None:
    output = Emitted("k-0", NEXT, 1, "x")
    one = Commit(op=1, outputs=[output], applied=["k"], staged=True)
    events: list[Event] = [Life(is_empty=True), one, Unknown(op=1), replace(one, op=2), Push(op=3, outputs=[output])]
    assert "left early" not in [finding.what for finding in check([*events, Quiesce(queues=[])]).findings]
    assert first([*events[:2], *events[3:], Quiesce(queues=[])]).what == "left early"


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
    refused = changed(events, 3, changes=one.changes, refused=["k"])
    assert check(refused, guarantees=("deterministic",)).findings[0].what == "attempts differ"
    later = changed(events, 3, changes=[Change("A:1", 1, 2, 8)])
    assert check(later, guarantees=("deterministic",)).ok, "it began from another version"


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


@pytest.mark.parametrize(("boot", "next_boot"), [("b", "another"), ("", "")])
def test_a_change_whose_line_a_power_loss_took_is_distinguished_from_a_fault(boot: str, next_boot: str) -> None:
    after: list[Event] = [Life(boot=next_boot, sequence=9), FOLLOWS_UNSEEN, Ok(op=1), Quiesce(queues=[IN])]
    held = Claim(deliveries=[Delivered("t1", IN, 2)])  # it may have ended in a line that is lost
    verdict = check([*changed(committed_once(), 0, boot=boot), held, *after])
    assert verdict.ok and verdict.counts.unrecorded == 2


def test_a_power_loss_excuses_a_state_once() -> None:
    life, again = Life(boot="another", sequence=9), Commit(op=2, changes=[Change("A:1", 9, 10, 7)], applied=["n"])
    follows = changed([FOLLOWS_UNSEEN], 0, changes=[Change("A:1", 4, 5, 7)])
    verdict = check([*committed_once(), life, *follows, Ok(op=1), again, Ok(op=2), Quiesce(queues=[IN])])
    assert [finding.what for finding in verdict.findings] == ["ghost version"] and verdict.counts.unrecorded == 3


def test_behind_a_delete_a_commit_without_an_answer_may_have_begun_anew() -> None:
    one = Commit(op=1, changes=[Change("A:1", 0, 1, 7)], applied=["k"])
    deleted = Commit(op=2, changes=[Change("A:1", 1, 2, 0)], applied=["m"])
    anew = Commit(op=3, changes=[Change("A:1", 0, 1, 9)], applied=["n"])
    events = [Life(is_empty=True), one, Ok(op=1), deleted, Ok(op=2), anew, Unknown(op=3), Quiesce(queues=[])]
    verdict = check(events)
    assert verdict.ok and verdict.counts.resolved == 1


def test_what_was_overtaken_before_a_commit_began_is_a_stale_read_to_it() -> None:
    writes = [
        event
        for n in (1, 2)
        for event in (Commit(op=n, changes=[Change("A:1", n - 1, n, 7)], applied=[f"{n}"]), Ok(op=n))
    ]
    under_way = Commit(op=8, changes=[Change("B:1", 0, 1, 7)], applied=["b"])
    decides = [Commit(op=9, seen=[Seen("A:1", 1)], refused=["c"]), Ok(op=9)]
    events: list[Event] = [Life(is_empty=True), under_way, *writes, *decides, Ok(op=8), Quiesce(queues=[])]
    assert first(events).what == "stale read"
    assert check([*events[:4], decides[0], *events[4:6], decides[1], *events[8:]]).ok, "it was under way meanwhile"


def test_a_refused_message_may_change_a_state_and_what_is_spilled_may_leave() -> None:
    refused = Commit(op=1, changes=[Change("A:1", 0, 1, 7)], refused=["k"])
    assert check([Life(is_empty=True), refused, Ok(op=1), Quiesce(queues=[])]).ok
    step = Commit(op=1, step="p#1", spilled=["cell"])
    push = Push(op=2, outputs=[Emitted("cell-0", NEXT, 1, "p#1")])
    assert check([Life(is_empty=True), step, Ok(op=1), push, Ok(op=2), Quiesce(queues=[])]).ok
    assert first([Life(is_empty=True), Commit(op=1, step="p#1"), Ok(op=1), push, Ok(op=2)]).what == "ghost output"


def test_a_killed_process_loses_no_line_so_a_version_unheard_of_is_a_fault() -> None:
    after: list[Event] = [Life(boot="b", sequence=9), FOLLOWS_UNSEEN, Ok(op=1), Quiesce(queues=[IN])]
    assert first([*committed_once(), *after]).what == "ghost version"


@pytest.mark.parametrize("sequence", [1, 39, 40, 41])
def test_a_history_may_begin_in_the_middle(sequence: int) -> None:
    events: list[Event] = [
        Life(boot="b", sequence=40, tallies={IN: Tally(30, 20)}),
        Claim(deliveries=[Delivered("x-0", NEXT, sequence, outside=False)]),
        Commit(op=1, ended=[Ended(NEXT, sequence, "x-0")], changes=[Change("A:1", 5, 6, 7)], applied=["k"]),
        *(Ok(op=1), Quiesce(queues=[IN, NEXT])),
    ]
    verdict = check(events)
    assert verdict.ok is (sequence <= 40) and verdict.counts.unrecorded == 0


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
    restarted = [
        *changed(events[:4], 0, boot="b", tallies={IN: Tally(0, 0)}),
        Life(boot="b", tallies={IN: Tally(1, 0)}),
    ]
    assert check([*restarted, *events[4:]]).ok, "it had left its queue, and lies in it again"
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
    staged = changed(events, 1, staged=True)
    verdict = check([*staged, Quiesce(at_ms=20, queues=[NEXT])])
    assert [(each.what, each.line) for each in verdict.findings] == [("lost output", 4)], "said once"


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
