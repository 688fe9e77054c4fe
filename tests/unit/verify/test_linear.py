"""Every way in which a system can break its promises is found in its history, at the event that shows it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from outbox.verify.guarantees import check
from outbox.verify.histories.events import (
    Blob,
    Buried,
    Change,
    Claim,
    Commit,
    Cut,
    Delivered,
    Effect,
    Emitted,
    Ended,
    Event,
    Fail,
    Found,
    In,
    Life,
    Ok,
    Push,
    Put,
    Quiesce,
    Seen,
    Settled,
    Tally,
    Unknown,
)
from outbox.verify.histories.findings import Finding
from tests.unit.verify.histories import (
    IN,
    NEXT,
    OUT,
    answer_to,
    calm,
    changed,
    committed,
    inserted,
    made,
)

Seeds = st.integers(0, 1 << 30)


def first(events: list[Event], *, alone: bool = False) -> Finding:
    """The first finding, which there must be."""
    verdict = check(events, alone=alone)
    assert not verdict.ok, verdict.text
    return verdict.findings[0]


@settings(max_examples=300, deadline=None)
@given(Seeds, st.integers(0, 15))
def test_a_correct_history_passes_whatever_crashed_or_went_unanswered(seed: int, message_count: int) -> None:
    verdict = check(made(seed, message_count), alone=True)
    assert verdict.ok, verdict.text
    assert verdict.counts.unrecorded == verdict.counts.unexplained == 0


# Planted faults: each is found at its event


@settings(max_examples=60, deadline=None)
@given(Seeds, st.data())
def test_a_message_that_comes_again_after_its_commit_tells_of_a_lost_commit(seed: int, data: st.DataObject) -> None:
    events = calm(seed)
    index, commit = data.draw(st.sampled_from(committed(events)))
    ended = commit.ended[0]
    claim = next(e for e in events if isinstance(e, Claim) and e.deliveries[0].sequence == ended.sequence)
    at = answer_to(events, index) + 1
    found = first(inserted(events, at, claim))
    assert (found.what, found.line) == ("lost commit", at + 1)
    assert "at-least-once" in found.breaks and "exactly-once" in found.breaks


@settings(max_examples=60, deadline=None)
@given(Seeds, st.data())
def test_a_doubled_output_is_found_where_it_is_sent_again(seed: int, data: st.DataObject) -> None:
    events = calm(seed)
    answers = {index: answer_to(events, index) for index, _ in committed(events)}
    pairs = [(a, b) for a in answers for b in answers if answers[a] < answers[b] and a < b]
    one, two = data.draw(st.sampled_from(pairs))
    earlier, later = events[one], events[two]
    assert isinstance(earlier, Commit) and isinstance(later, Commit)
    again = replace(earlier.outputs[0], cause="")
    found = first(changed(events, two, outputs=[*later.outputs, again]))
    assert (found.what, found.line, found.against) == ("doubled output", answers[two] + 1, answers[one] + 1)


@settings(max_examples=60, deadline=None)
@given(Seeds, st.data())
def test_a_fork_is_found_where_the_second_branch_is_acknowledged(seed: int, data: st.DataObject) -> None:
    events = calm(seed, 10)
    later = [(index, commit) for index, commit in committed(events) if commit.changes[0].before > 0]
    index, commit = data.draw(st.sampled_from(later))
    change = commit.changes[0]
    stale = Change(change.state, change.before - 1, change.version - 1, change.digest)
    verdict = check(changed(events, index, changes=[stale]))
    forks = [finding for finding in verdict.findings if finding.what == "forked version"]
    assert forks[0].line == answer_to(events, index) + 1
    assert forks[0].breaks == ("consistent", "exactly-once")


@settings(max_examples=60, deadline=None)
@given(Seeds, st.data())
def test_an_output_that_no_commit_made_is_found_where_it_is_handed_out(seed: int, data: st.DataObject) -> None:
    events = calm(seed)
    at = data.draw(st.integers(1, len(events) - 1))
    ghost = Claim(deliveries=[Delivered("nobody-0", NEXT, 10_000, outside=False)])
    found = first(inserted(events, at, ghost))
    assert (found.what, found.line, found.ids) == ("ghost output", at + 1, ("nobody-0",))


@settings(max_examples=60, deadline=None)
@given(Seeds, st.data())
def test_a_changed_payload_is_found_where_it_is_handed_out(seed: int, data: st.DataObject) -> None:
    events = calm(seed)
    inside = [i for i, e in enumerate(events) if isinstance(e, Claim) and not e.deliveries[0].outside]
    at = data.draw(st.sampled_from(inside))
    claim = events[at]
    assert isinstance(claim, Claim)
    wrong = replace(claim.deliveries[0], digest=claim.deliveries[0].digest + 1)
    verdict = check(changed(events, at, deliveries=[wrong]))
    assert [(f.what, f.line) for f in verdict.findings if f.what == "changed payload"] == [("changed payload", at + 1)]


def test_a_history_without_quiesce_holds_nothing_that_silence_would_break() -> None:
    verdict = check(calm()[:-1])
    assert verdict.findings[0].line == len(calm()) - 1 and verdict.findings[0].what == "no quiesce"
    assert verdict.first("at-most-once") is None and verdict.first("at-least-once") is not None


def test_a_message_that_is_never_ended_is_lost_at_the_quiesce() -> None:
    events = inserted(calm(), len(calm()) - 1, Claim(deliveries=[Delivered("late", IN, 10_000)]))
    found = first(events)
    assert (found.what, found.line, found.ids) == ("lost message", len(events), ("late",))


def test_an_accepted_message_that_is_never_handed_out_is_lost_at_the_quiesce() -> None:
    events = inserted(calm(), 1, In(queue=IN, messages=[("never", 0)]))
    found = first(events)
    assert (found.what, found.line, found.against, found.ids) == ("lost message", len(events), 2, ("never",))


def test_an_output_that_never_comes_out_is_lost_at_the_quiesce() -> None:
    events = calm()
    index, commit = committed(events)[0]
    more = Emitted(f"{commit.applied[0]}-9", NEXT, 1, commit.ended[0].id)
    found = first(changed(events, index, outputs=[*commit.outputs, more]))
    assert (found.what, found.line, found.ids) == ("lost output", len(events), (more.id,))


def test_what_is_due_after_the_quiesce_is_not_lost() -> None:
    events = calm()
    index, commit = committed(events)[0]
    later = Emitted(f"{commit.applied[0]}-9", NEXT, 1, commit.ended[0].id, due_ms=5)
    events = changed(events, index, outputs=[*commit.outputs, later])
    assert check(changed(events, len(events) - 1, tallies={})).ok


def test_a_message_applied_twice_is_found_at_the_second_commit() -> None:
    events = calm()
    index, commit = committed(events)[0]
    twice: list[Event] = [
        Claim(deliveries=[Delivered("t0", IN, 10_000)]),
        Commit(op=10_000, ended=[Ended(IN, 10_000, "t0")], applied=commit.applied),
        Ok(op=10_000),
    ]
    found = first(inserted(events, len(events) - 1, *twice))
    assert (found.what, found.line, found.against) == ("applied twice", len(events) + 2, answer_to(events, index) + 1)


def test_a_change_that_no_message_made_is_found() -> None:
    events = [
        Life(is_empty=True),
        Commit(op=1, ended=[Ended(IN, 1, "t0")], changes=[Change("A:1", 0, 1, 7)]),
        Ok(op=1),
        Quiesce(queues=[IN]),
    ]
    assert first(events).what == "change without a message"


def test_an_output_of_a_message_that_was_not_applied_is_found() -> None:
    commit = Commit(op=1, ended=[Ended(IN, 1, "t0")], outputs=[Emitted("k-0", OUT, 1, "t0")])
    assert first([Life(is_empty=True), commit, Ok(op=1), Quiesce(queues=[IN])]).what == "output without a message"


def test_a_stale_read_that_decided_is_found() -> None:
    events: list[Event] = [
        Life(is_empty=True),
        *(Commit(op=1, changes=[Change("A:1", 0, 1, 7)], applied=["a"]), Ok(op=1)),
        *(Commit(op=2, seen=[Seen("A:1", 0)], refused=["b"]), Ok(op=2)),
        Quiesce(queues=[]),
    ]
    assert (first(events).what, first(events).line) == ("stale read", 5)


def test_what_was_overtaken_while_it_was_under_way_is_no_stale_read() -> None:
    events: list[Event] = [
        Life(is_empty=True),
        Commit(op=2, seen=[Seen("A:1", 0)], refused=["b"]),
        *(Commit(op=1, changes=[Change("A:1", 0, 1, 7)], applied=["a"]), Ok(op=1)),
        *(Ok(op=2), Quiesce(queues=[])),
    ]
    assert check(events).ok


def test_a_version_that_nobody_wrote_is_found() -> None:
    events: list[Event] = [
        Life(is_empty=True),
        Commit(op=1, changes=[Change("A:1", 3, 4, 7)], applied=["a"]),
        Ok(op=1),
        Quiesce(queues=[]),
    ]
    assert (first(events).what, first(events).line) == ("ghost version", 3)
    assert check(inserted(events, 1, Put(state="A:1", version=3))).ok


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


def test_a_commit_without_an_answer_did_not_take_effect_when_its_message_comes_again() -> None:
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


def test_a_change_whose_line_a_power_loss_took_is_told_from_a_fault() -> None:
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


def test_what_left_unseen_is_told_and_lost_where_nobody_else_takes_messages() -> None:
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


# Stores and buses apart


def staged(*after: Event) -> list[Event]:
    commit = Commit(op=1, outputs=[Emitted("k-0", OUT, 5, "t0")], applied=["k"], staged=True)
    return [Life(is_empty=True), commit, *after, Quiesce(queues=[])]


PUSH = Push(op=2, outputs=[Emitted("k-0", OUT, 5, "t0")])


@pytest.mark.parametrize(
    ("after", "what"),
    [
        ((Ok(op=1), PUSH, Ok(op=2)), None),
        ((Ok(op=1), PUSH, Unknown(op=2), replace(PUSH, op=3), Ok(op=3)), None),
        ((Unknown(op=1), PUSH, Ok(op=2)), None),
        ((PUSH, Ok(op=1), Ok(op=2)), "left early"),
        ((Fail(op=1, why="lost"), PUSH, Ok(op=2)), "ghost output"),
        ((Ok(op=1), PUSH, Fail(op=2)), "lost output"),
        ((Ok(op=1), replace(PUSH, outputs=[Emitted("k-0", OUT, 6, "t0")]), Ok(op=2)), "changed payload"),
    ],
)
def test_staged_outputs_leave_after_their_commit_and_as_they_were_stored(
    after: tuple[Event, ...], what: str | None
) -> None:
    verdict = check(staged(*after))
    assert verdict.ok if what is None else verdict.findings[0].what == what, verdict.text


def test_an_effect_done_twice_for_one_message_is_found() -> None:
    charge = Effect(id="t0", what="charge")
    events: list[Event] = [Life(), charge, Effect(id="t1", what="charge"), charge, Quiesce(queues=[])]
    assert (first(events).what, first(events).line, first(events).against) == ("effect twice", 4, 2)


def test_a_blob_is_written_with_the_same_bytes_or_found() -> None:
    blob = Blob(op=1, name="b", digest=1, size_bytes=1)
    events: list[Event] = [Life(), blob, replace(blob, op=2), Quiesce(queues=[])]
    assert check(events).ok
    assert first(changed(events, 2, digest=2)).what == "changed blob"


def settled(*answers: Event) -> list[Event]:
    claim = Claim(deliveries=[Delivered("t0", IN, 1)])
    commit = Commit(op=9, applied=["k"], staged=True)
    how = Settled(op=1, queue=IN, sequence=1, id="t0", how="complete")
    return [Life(), claim, commit, Ok(op=9), how, *answers, Quiesce(queues=[IN])]


def test_a_delivery_is_not_ended_twice() -> None:
    assert check(settled(Ok(op=1))).ok
    again = Settled(op=2, queue=IN, sequence=1, id="t0", how="complete")
    assert first(settled(Ok(op=1), again, Ok(op=2))).what == "ended twice"
    assert first(settled(Fail(op=1))).what == "lost message"


def test_a_delivery_of_which_nobody_knows_whether_it_ended_may_come_again() -> None:
    assert check(settled(Unknown(op=1))).ok
    again = Settled(op=2, queue=IN, sequence=1, id="t0", how="complete")
    assert check(settled(Unknown(op=1), Claim(deliveries=[Delivered("t0", IN, 1)]), again, Ok(op=2))).ok


def test_a_message_completed_without_a_record_is_lost() -> None:
    events = settled(Ok(op=1))
    assert first([*events[:2], *events[4:]]).what == "completed without a commit"


def test_a_record_that_somebody_reads_shows_that_its_commit_took_effect() -> None:
    commit = Commit(op=1, outputs=[Emitted("k-0", OUT, 5, "t0")], applied=["k"], staged=True, tx="x")
    events: list[Event] = [Life(is_empty=True), commit, PUSH, Ok(op=1), Ok(op=2), Quiesce(queues=[])]
    assert first(events).what == "left early"
    assert check(inserted(events, 2, Found(txs=["x"]))).ok


# The verdict


def test_recording_that_stopped_decides_nothing_of_what_came_after() -> None:
    verdict = check([*calm()[:-1], Cut(why="full")])
    assert verdict.first("at-least-once") is not None and "full" in verdict.text
    assert verdict.first("at-most-once") is None


def test_the_text_names_line_ids_and_promise() -> None:
    text = check(inserted(calm(), len(calm()) - 1, Claim(deliveries=[Delivered("late", IN, 10_000)]))).text
    assert f"BROKEN at line {len(calm()) + 1}: message late (transfers 10000) was handed out and never ended" in text
    assert "at-most-once   holds" in text


def test_an_unknown_guarantee_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="at-most-once"):
        check([], guarantees=("exactly-twice",))


def test_what_nobody_asked_for_crowds_nothing_out() -> None:
    ghosts = [Claim(deliveries=[Delivered(f"g{n}-0", NEXT, n, outside=False)]) for n in range(1, 301)]
    events: list[Event] = [Life(is_empty=True), *ghosts, Effect(id="t", what="x"), Effect(id="t", what="x")]
    verdict = check([*events, Quiesce(queues=[])], guarantees=("at-most-once",))
    assert [finding.what for finding in verdict.findings] == ["effect twice"] and verdict.finding_count == 1


def test_a_life_after_a_cut_does_not_blame_the_system_for_missing_lines() -> None:
    life = Life(boot="b", sequence=9)
    events = [*committed_once(), Cut(why="full"), life, FOLLOWS_UNSEEN, Ok(op=1), Quiesce(queues=[IN])]
    assert [finding.what for finding in check(events).findings] == ["cut"]


def test_findings_are_bounded_and_counted() -> None:
    ghosts: list[Event] = [Claim(deliveries=[Delivered(f"g{n}-0", NEXT, n, outside=False)]) for n in range(1, 301)]
    verdict = check([Life(is_empty=True), *ghosts, Quiesce(queues=[])])
    assert (len(verdict.findings), verdict.finding_count) == (100, 300)
    assert "300 findings in all" in verdict.text
