"""Every way in which a system can break its promises is found in its history, at the event that shows it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from outbox.verify.guarantees import check
from outbox.verify.recorded.events import (
    Change,
    Claim,
    Commit,
    Delivered,
    Emitted,
    Ended,
    Event,
    In,
    Life,
    Ok,
    Push,
    Put,
    Quiesce,
    Read,
    Result,
    Seen,
)
from tests.unit.verify.histories import IN, NEXT, OUT, answer_to, calm, changed, committed, first, inserted, made

Seeds = st.integers(0, 1 << 30)


@settings(max_examples=300, deadline=None)
@given(Seeds, st.integers(0, 15))
def test_a_correct_history_passes_whatever_crashed_or_went_unanswered(seed: int, message_count: int) -> None:
    verdict = check(made(seed, message_count), alone=True)
    assert verdict.ok, verdict.text
    assert verdict.counts.unrecorded == verdict.counts.unexplained == 0


# Planted faults: each is found at its event


@settings(max_examples=60, deadline=None)
@given(Seeds, st.data())
def test_a_redelivery_after_its_commit_shows_a_lost_commit(seed: int, data: st.DataObject) -> None:
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


BEHIND: list[Event] = [
    Life(boot="b"),
    In(queue=IN, messages=[("t9", 1)]),
    Claim(deliveries=[Delivered("t9", IN, 99)]),
    Commit(op=9),
    Push(op=9, outputs=[Emitted("x", OUT)]),
    Read(log="log/l/0.0", cells=[(0, "c", 1)]),
    Result(id="r", parents=["log/l/0.0/0.0"], is_ordered=True, sink="log/m/0.0", at=(0, 0)),
]


@pytest.mark.parametrize("event", BEHIND, ids=lambda event: type(event).__name__)
def test_what_comes_behind_a_quiesce_is_not_decided_by_it(event: Event) -> None:
    events: list[Event] = [Life(boot="b", is_empty=True), Quiesce(queues=[])]
    assert check(events).ok
    assert [finding.what for finding in check([*events, event]).findings] == ["no quiesce"]


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


def test_a_version_without_a_write_is_found() -> None:
    events: list[Event] = [
        Life(is_empty=True),
        Commit(op=1, changes=[Change("A:1", 3, 4, 7)], applied=["a"]),
        Ok(op=1),
        Quiesce(queues=[]),
    ]
    assert (first(events).what, first(events).line) == ("ghost version", 3)
    assert check(inserted(events, 1, Put(state="A:1", version=3))).ok
