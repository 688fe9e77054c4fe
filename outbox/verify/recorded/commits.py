"""Commits along a history: when each took effect, and that what it did follows from messages and versions before it.

A commit takes effect somewhere between its invocation and its answer.  Without an answer it does so as soon as
another is seen to build on it; at `quiesce` those that still may have taken effect are taken to have, in the order of
versions, and the others not.  What is done twice, or follows from nothing, is found when the second takes effect.

A commit that was asked for and has no answer is *open*; when its answer is `unknown`, or its process died, it is
*optional*: it may have taken effect then, may do so later, or never.  What is seen afterwards decides.  Another
follows the version that it would have made, or holds a message that it would have sent: it took effect.  A message
that it would have ended is handed out again: it did not.

Each version of a state is made once, from the one before it.  A change from version 3 to 5 took two messages.  One that
starts behind the newest version is a fork: it overwrote what another commit had written, or what it had built on was
lost after it had been acknowledged.  One that starts ahead of it follows a version that no commit wrote.  A state that
must stay as it was seen may have been overtaken only by what was under way at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from outbox.verify.recorded.events import Change, Commit, Emitted, Seen
from outbox.verify.recorded.flow import Flow
from outbox.verify.recorded.logs import Logs
from outbox.verify.recorded.verdict import Findings

OPEN, OPTIONAL, EFFECTIVE = range(3)

Key = TypeVar("Key", str, tuple[str, int])
Number = tuple[int, int]
"""The life and number of an operation."""
Step = tuple[str, int, int]
"""A state, and from which version to which; or an output, with -1 twice."""


@dataclass(slots=True, eq=False)
class Pending:
    """One commit without a known outcome."""

    commit: Commit
    line: int
    number: Number
    status: int = OPEN


class Undecided:
    """All commits without a known outcome, found by what would show it."""

    def __init__(self) -> None:
        self.open: dict[Number, Pending] = {}
        self.optional: dict[Number, Pending] = {}
        self._by_output: dict[str, list[Pending]] = {}
        self._by_state: dict[str, list[Pending]] = {}
        self.by_delivery: dict[tuple[str, int], list[Pending]] = {}
        self.by_tx: dict[str, Pending] = {}
        self.assumed: dict[Step, list[Pending]] = {}
        """The steps that were made, each by one of these commits."""

    def __len__(self) -> int:
        return len(self.open) + len(self.optional)

    def begin(self, pending: Pending) -> None:
        """A commit was asked for."""
        self.open[pending.number] = pending
        if pending.commit.tx:
            self.by_tx[pending.commit.tx] = pending
        for output in pending.commit.outputs:
            self._by_output.setdefault(output.id, []).append(pending)
        for change in pending.commit.changes:
            self._by_state.setdefault(change.state, []).append(pending)

    def make_optional(self, pending: Pending) -> None:
        """The outcome of a commit is unknown."""
        pending.status = OPTIONAL
        self.optional[pending.number] = pending
        for place in places_of(pending.commit):
            self.by_delivery.setdefault(place, []).append(pending)

    def orphans(self) -> list[Pending]:
        """The open commits, which are open no more: their process died."""
        found = list(self.open.values())
        self.open.clear()
        return found

    def drop(self, pending: Pending) -> None:
        """The outcome of a commit is known now."""
        self.optional.pop(pending.number, None)
        if pending.commit.tx:
            self.by_tx.pop(pending.commit.tx, None)
        for output in pending.commit.outputs:
            _remove(self._by_output, output.id, pending)
        for change in pending.commit.changes:
            _remove(self._by_state, change.state, pending)
        if pending.status == OPTIONAL:
            for place in places_of(pending.commit):
                _remove(self.by_delivery, place, pending)

    def sending(self, output: str, digest: int | None = None) -> list[Pending]:
        """The commits that would have sent this (with this digest), oldest first."""
        return [
            pending
            for pending in self._by_output.get(output, ())
            if digest is None or any(o.id == output and o.digest == digest for o in pending.commit.outputs)
        ]

    def making(self, state: str, version: int) -> list[tuple[Step, Pending]]:
        """The commits that would have made this version of a state, oldest first, each with its step."""
        return [
            ((state, change.before, version), pending)
            for pending in self._by_state.get(state, ())
            for change in pending.commit.changes
            if change.state == state and change.version == version
        ]

    # Assumptions

    def exclude(self, pending: Pending) -> list[tuple[Step, list[Pending]]]:
        """A commit did not take effect: the steps assumed that it might have made, and who else may have."""
        found: list[tuple[Step, list[Pending]]] = []
        if not self.assumed:
            return found
        for step in (*map(step_of, pending.commit.changes), *map(step_of, pending.commit.outputs)):
            left = self.assumed.get(step)
            if left is not None and pending in left:
                left.remove(pending)
                found.append((step, left))
        return found


def places_of(commit: Commit) -> list[tuple[str, int]]:
    """Queue and sequence of every delivery that a commit ends."""
    return [*((e.queue, e.sequence) for e in commit.ended), *((b.queue, b.sequence) for b in commit.buried)]


def step_of(part: Change | Emitted) -> Step:
    """The step of a part of a commit, as something that can be assumed."""
    return (part.state, part.before, part.version) if isinstance(part, Change) else (part.id, -1, -1)


def _remove(index: dict[Key, list[Pending]], key: Key, pending: Pending) -> None:
    found = index.get(key)
    if found is not None:
        found.remove(pending)
        if not found:
            del index[key]


Tip = tuple[int, int, bool]
"""The newest version of a state, the line that made it, and whether that deleted the state."""


class Versions:
    """The newest version of every state."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._tips: dict[str, Tip] = {}
        self.overtaken: dict[str, list[tuple[int, int]]] = {}
        """For states that changed while something else was under way: versions, and the lines that replaced them."""
        self.is_complete = False
        """Whether the history begins where the system does, so that an unknown state must be absent."""
        self._excused: set[str] | None = None

    def tip(self, state: str) -> int | None:
        """The newest version of a state; None if it is unknown."""
        found = self._tips.get(state)
        return None if found is None else found[0]

    def excuse(self) -> None:
        """From here on a state may once be ahead of what the history tells: its lines were lost."""
        self._excused = set()

    def put(self, state: str, version: int) -> None:
        """A state was written by other means."""
        self._tips[state] = (version, self._findings.line, False)

    def assume(self, state: str, version: int) -> None:
        """An unknown commit made a version while others were under way."""
        tip = self._tips.get(state)
        self.overtaken.setdefault(state, []).append((0 if tip is None else tip[0], self._findings.line))
        self._tips[state] = (version, self._findings.line, False)

    def fits(self, change: Change) -> bool:
        """Whether a change starts from the newest version."""
        tip = self._tips.get(change.state)
        return tip is None or change.before in (tip[0], -1) or (tip[2] and change.before == 0)

    def change(self, change: Change, *, is_alone: bool) -> None:
        """A change took effect; `is_alone` says that nothing else was under way."""
        state, before = change.state, change.before
        tip = self._tips.get(state)
        if tip is None:
            if before > 0 and self.is_complete:
                self._ahead(state, before, 0)
        elif before not in (tip[0], -1) and not (tip[2] and before == 0):
            if before > tip[0]:
                self._ahead(state, before, tip[0], against=tip[1])
            else:
                self._fork(change, tip)
        if before >= change.version and before != -1 and not (tip is not None and tip[2]):
            text = f"state {state} went from version {before} to {change.version}: versions only rise"
            self._findings.add("version fell", text, state)
        if not is_alone:
            self.overtaken.setdefault(state, []).append((before if tip is None else tip[0], self._findings.line))
        self._tips[state] = (change.version, self._findings.line, change.digest == 0)
        self._findings.counts.changes += 1

    def seen(self, seen: Seen, begun: int) -> None:
        """A commit that began at a line took effect on the condition that a state is still as seen."""
        tip = self._tips.get(seen.state)
        if tip is None:
            if seen.version > 0:
                if self.is_complete:
                    self._ahead(seen.state, seen.version, 0)
                self._tips[seen.state] = (seen.version, self._findings.line, False)
            return
        if seen.version in (tip[0], -1) or (tip[2] and seen.version == 0):
            return
        if seen.version > tip[0]:
            self._ahead(seen.state, seen.version, tip[0], against=tip[1])
            self._tips[seen.state] = (seen.version, self._findings.line, False)
        elif not any(v == seen.version and at > begun for v, at in self.overtaken.get(seen.state, ())):
            text = (
                f"state {seen.state} was taken for version {seen.version}, but line {tip[1]} had made it {tip[0]}: "
                "decided on a stale read"
            )
            self._findings.add("stale read", text, seen.state, against=tip[1])

    def _ahead(self, state: str, before: int, tip: int, *, against: int = 0) -> None:
        if self._excused is not None and state not in self._excused:
            self._excused.add(state)
            self._findings.counts.unrecorded += max(1, before - tip)
            return
        text = f"state {state} is at version {before}, but the newest that was written is {tip}"
        self._findings.add("ghost version", text, state, against=against)

    def _fork(self, change: Change, tip: Tip) -> None:
        text = (
            f"state {change.state} was changed from version {change.before} to {change.version}, but line {tip[1]} had "
            f"made it {tip[0]} before: a fork, or that commit was lost"
        )
        self._findings.add("forked version", text, change.state, against=tip[1])


class Commits:
    """Every commit that took effect, by what must not happen again, and those whose outcome is unknown."""

    def __init__(self, flow: Flow, logs: Logs, findings: Findings) -> None:
        self.versions = Versions(findings)
        self.on_effect: Callable[[Commit], None] | None = None
        """Called with every commit that took effect."""
        self._flow = flow
        self._logs = logs
        self._findings = findings
        self._undecided = Undecided()
        self._applied: dict[str, int] = {}
        self._spilled: set[str] = set()

    # Invoked and answered

    def begin(self, commit: Commit, number: Number) -> None:
        """A commit is asked for."""
        self._undecided.begin(Pending(commit, self._findings.line, number))

    def ok(self, number: Number) -> bool:
        """An operation took effect; False if it is no commit."""
        pending = self._undecided.open.pop(number, None)
        if pending is None:
            return False
        if pending.status != EFFECTIVE:
            self._take_effect(pending)
        if not len(self._undecided):
            self.versions.overtaken.clear()  # nothing is under way: no commit may build on an old version
        return True

    def fail(self, number: Number, why: str) -> None:
        """An operation had no effect."""
        pending = self._undecided.open.pop(number, None)
        if pending is not None and pending.status == EFFECTIVE:
            text = f"the commit of line {pending.line} failed ({why}), but others saw what it did"
            self._findings.add("ghost commit", text, *_ids(pending.commit), against=pending.line)
        elif pending is not None:
            self._exclude(pending)

    def unknown(self, number: Number) -> None:
        """The outcome of an operation is unknown."""
        pending = self._undecided.open.pop(number, None)
        if pending is not None:
            self._make_optional(pending)

    def orphan(self) -> None:
        """Make the outcome of every open commit unknown, because the process died."""
        for pending in self._undecided.orphans():
            self._make_optional(pending)

    def _make_optional(self, pending: Pending) -> None:
        if pending.status == OPEN:
            self._findings.counts.optional += 1
            self._undecided.make_optional(pending)

    # Seen

    def is_still_there(self, queue: str, sequence: int) -> None:
        """A delivery is handed out, so no commit without an answer has ended it."""
        for pending in list(self._undecided.by_delivery.get((queue, sequence), ())):
            self._exclude(pending)

    def was_found(self, tx: str) -> None:
        """Note that a transaction's writes were read."""
        pending = self._undecided.by_tx.get(tx)
        if pending is not None and pending.status != EFFECTIVE:
            self._take_effect(pending)

    def may_have_sent(self, output: str) -> bool:
        """Whether an output is of a message whose outputs lie elsewhere."""
        return output.rpartition("-")[0] in self._spilled

    def senders(self, output: str, digest: int) -> list[Pending]:
        """The commits without an answer that would have sent this."""
        return self._undecided.sending(output, digest)

    def must_have_sent(self, output: str, digest: int) -> None:
        """An output of an unanswered commit was handed out, so it took effect; of several candidates assume one."""
        found = [p for p in self._undecided.sending(output, digest) if not self._is_settled(p.commit)]
        found = found or self._undecided.sending(output)  # with another payload, which is a finding of its own
        if len(found) == 1:
            self._take_effect(found[0])
        elif found:
            self._undecided.assumed[output, -1, -1] = found
            emitted = next(o for o in found[0].commit.outputs if o.id == output)
            self._flow.emit(emitted, self._findings.line, staged=found[0].commit.staged)

    def _exclude(self, pending: Pending) -> None:
        """A commit did not take effect; who else made what it might have?"""
        self._undecided.drop(pending)
        for step, left in self._undecided.exclude(pending):
            if len(left) == 1:
                self._take_effect(left[0])
            elif not left and self._undecided.assumed.pop(step, None) is not None:
                text = f"{step[0]} was seen, but no commit that could have made it took effect"
                what = "ghost output" if step[2] < 0 else "ghost version"
                self._findings.add(what, text, step[0], against=pending.line)

    def quiesce(self) -> None:
        """Decide every optional commit: one that may have taken effect has."""
        self.orphan()
        optional = self._undecided.optional.values()
        waiting = sorted(optional, key=lambda p: max([c.before for c in p.commit.changes], default=0))
        has_more = True
        while has_more:  # mostly once, as they are in the order of versions
            has_more = False
            for pending in waiting:
                if pending.status == OPTIONAL and self._is_possible(pending.commit):
                    self._take_effect(pending)
                    has_more = True
        for pending in waiting:
            if pending.status == OPTIONAL:
                self._exclude(pending)

    def _is_possible(self, commit: Commit) -> bool:
        """Whether a commit can have taken effect after all that did."""
        return not self._is_settled(commit) and all(
            self.versions.fits(change) or step_of(change) in self._undecided.assumed for change in commit.changes
        )

    def _is_settled(self, commit: Commit) -> bool:
        """Whether another commit has done what this one was to do."""
        return any(key in self._applied for key in commit.applied) or any(
            self._flow.has_ended(queue, sequence) for queue, sequence in places_of(commit)
        )

    # Taking effect

    def _take_effect(self, pending: Pending) -> None:
        """A commit took effect, and before it those whose versions it follows."""
        todo = [pending]
        while todo:
            current = todo[-1]
            earlier = self._earlier(current, todo)
            if earlier is not None:
                todo.append(earlier)
                continue
            todo.pop()
            if current.status != EFFECTIVE:
                self._findings.counts.resolved += current.status == OPTIONAL
                self._undecided.drop(current)
                current.status = EFFECTIVE
                self._apply(current)

    def _earlier(self, pending: Pending, todo: list[Pending]) -> Pending | None:
        """A commit without an answer that must have taken effect before this one."""
        commit = pending.commit
        for change in commit.changes:
            found = self._maker(change.state, change.before, todo)
            if found is not None:
                return found
        for seen in commit.seen:
            found = self._maker(seen.state, seen.version, todo)
            if found is not None:
                return found
        return None

    def _maker(self, state: str, needed: int, todo: list[Pending]) -> Pending | None:
        """The commit that must have made a version which another follows; where it may be any, assume one."""
        goal = needed
        while goal > (tip := self.versions.tip(state) or 0):
            found = [
                (step, maker)
                for step, maker in self._undecided.making(state, goal)
                if maker not in todo and step[1] >= tip and not self._is_settled(maker.commit)
            ]
            if not found:
                return None
            if len(found) == 1:
                return found[0][1]
            step = found[0][0]
            goal = step[1]
            if goal <= tip:  # the lowest step that several may have made
                self._undecided.assumed[step] = [maker for each, maker in found if each == step]
                self.versions.assume(state, step[2])
                goal = needed
        return None

    def _apply(self, pending: Pending) -> None:
        commit, flow = pending.commit, self._flow
        is_alone = not len(self._undecided)
        is_earlier = pending.number[0] < self._findings.counts.lives
        for seen in commit.seen:
            self.versions.seen(seen, pending.line)
        for ended in commit.ended:
            flow.end(ended)
        for buried in commit.buried:
            flow.bury(buried)
        for postponed in commit.postponed:
            flow.postpone(postponed)
        self._mark(commit)
        if commit.step:
            self._logs.step(commit)
        else:
            self._check_causes(commit)
        for change in commit.changes:
            if self._undecided.assumed.pop(step_of(change), None) is None:
                self.versions.change(change, is_alone=is_alone)
        for output in commit.outputs:
            if self._undecided.assumed.pop(step_of(output), None) is None:
                flow.emit(output, pending.line if is_earlier else self._findings.line, staged=commit.staged)
        if commit.is_spilled:
            self._spilled.update(commit.applied)
        self._spilled.update(commit.spilled)
        self._findings.counts.duplicates += max(0, len(commit.ended) - len(commit.applied))
        self._findings.counts.refused += len(commit.refused)
        if self.on_effect is not None:
            self.on_effect(commit)

    def _mark(self, commit: Commit) -> None:
        applied = self._applied
        for key in commit.applied:
            earlier = applied.get(key)
            if earlier is not None:
                text = f"message with inbox key {key} was applied here and in line {earlier}"
                self._findings.add("applied twice", text, key, *_ids(commit), against=earlier)
            applied[key] = self._findings.line
        self._findings.counts.applied += len(commit.applied)

    def _check_causes(self, commit: Commit) -> None:
        """Every change and output of a commit comes of a message that it applies: one version for each at most."""
        steps = sum([change.version - change.before for change in commit.changes if change.before >= 0])
        if steps > len(commit.applied) + len(commit.refused):
            text = f"states moved by {steps} versions for {len(commit.applied)} messages that this commit applies"
            self._findings.add("change without a message", text, *_ids(commit))
        if not commit.outputs:
            return
        keys = set(commit.applied)
        for output in commit.outputs:
            if output.cause and output.id.rpartition("-")[0] not in keys:
                text = f"output {output.id} comes of message {output.cause}, which this commit does not apply"
                self._findings.add("output without a message", text, output.id, output.cause)


def _ids(commit: Commit) -> tuple[str, ...]:
    return tuple([ended.id for ended in commit.ended[:4]])
