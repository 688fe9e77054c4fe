"""Commits along a history: when each took effect, and that what it did follows from messages and versions before it.

A commit takes effect somewhere between its invocation and its answer.  Without an answer it does so as soon as
another is seen to build on it; at `quiesce` those that still may have taken effect are taken to have, in the order of
versions, and the others not.  What is done twice, or follows from nothing, is found when the second takes effect.
"""

from __future__ import annotations

from collections.abc import Callable

from outbox.verify.recorded.events import Commit
from outbox.verify.recorded.flow import Flow
from outbox.verify.recorded.logs import Logs
from outbox.verify.recorded.pending import (
    EFFECTIVE,
    OPEN,
    OPTIONAL,
    Number,
    Pending,
    Undecided,
    places_of,
    step_of,
)
from outbox.verify.recorded.verdict import Counts, Findings
from outbox.verify.recorded.versions import Versions


class Commits:
    """Every commit that took effect, by what must not happen again, and those whose outcome is unknown."""

    def __init__(self, flow: Flow, logs: Logs, findings: Findings, counts: Counts) -> None:
        self.versions = Versions(findings, counts)
        self.on_effect: Callable[[Commit], None] | None = None
        """Called with every commit that took effect."""
        self._flow = flow
        self._logs = logs
        self._findings = findings
        self._counts = counts
        self._undecided = Undecided()
        self._applied: dict[str, int] = {}
        self._spilled: set[str] = set()

    # Invoked and answered

    def begin(self, commit: Commit, number: Number) -> None:
        """A commit is asked for."""
        self._undecided.begin(Pending(commit, self._findings.line, number))

    def ok(self, number: Number) -> bool:
        """An operation took effect; False if it is no commit."""
        pending = self._undecided.answered(number)
        if pending is None:
            return False
        if pending.status != EFFECTIVE:
            self._take_effect(pending)
        if not len(self._undecided):
            self.versions.forget_overtaken()
        return True

    def fail(self, number: Number, why: str) -> None:
        """An operation had no effect."""
        pending = self._undecided.answered(number)
        if pending is not None and pending.status == EFFECTIVE:
            text = f"the commit of line {pending.line} failed ({why}), but others saw what it did"
            self._findings.add("ghost commit", text, *_ids(pending.commit), against=pending.line)
        elif pending is not None:
            self._exclude(pending)

    def unknown(self, number: Number) -> None:
        """The outcome of an operation is unknown."""
        pending = self._undecided.answered(number)
        if pending is not None:
            self._make_optional(pending)

    def orphan(self) -> None:
        """Make the outcome of every open commit unknown, because the process died."""
        for pending in self._undecided.orphans():
            self._make_optional(pending)

    def _make_optional(self, pending: Pending) -> None:
        if pending.status == OPEN:
            self._counts.optional += 1
            self._undecided.make_optional(pending)

    # Seen

    def is_still_there(self, queue: str, sequence: int) -> None:
        """A delivery is handed out, so no commit without an answer has ended it."""
        for pending in self._undecided.ending(queue, sequence):
            self._exclude(pending)

    def was_found(self, tx: str) -> None:
        """Note that a transaction's writes were read."""
        pending = self._undecided.of_transaction(tx)
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
            self._undecided.assume((output, -1, -1), found)
            emitted = next(o for o in found[0].commit.outputs if o.id == output)
            self._flow.emit(emitted, self._findings.line, staged=found[0].commit.staged)

    def _exclude(self, pending: Pending) -> None:
        """A commit did not take effect; who else made what it might have?"""
        self._undecided.drop(pending)
        for step, left in self._undecided.exclude(pending):
            if len(left) == 1:
                self._take_effect(left[0])
            elif not left and self._undecided.settle(step):
                text = f"{step[0]} was seen, but no commit that could have made it took effect"
                what = "ghost output" if step[2] < 0 else "ghost version"
                self._findings.add(what, text, step[0], against=pending.line)

    def quiesce(self) -> None:
        """Decide every optional commit: one that may have taken effect has."""
        self.orphan()
        waiting = sorted(self._undecided.optional(), key=lambda p: max([c.before for c in p.commit.changes], default=0))
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
            self.versions.fits(change) or self._undecided.is_assumed(step_of(change)) for change in commit.changes
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
                self._counts.resolved += current.status == OPTIONAL
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
                self._undecided.assume(step, [maker for each, maker in found if each == step])
                self.versions.assume(state, step[2])
                goal = needed
        return None

    def _apply(self, pending: Pending) -> None:
        commit, flow = pending.commit, self._flow
        is_alone = not len(self._undecided)
        is_earlier = pending.number[0] < self._counts.lives
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
            if not self._undecided.settle(step_of(change)):
                self.versions.change(change, is_alone=is_alone)
        for output in commit.outputs:
            if not self._undecided.settle(step_of(output)):
                flow.emit(output, pending.line if is_earlier else self._findings.line, staged=commit.staged)
        if commit.is_spilled:
            self._spilled.update(commit.applied)
        self._spilled.update(commit.spilled)
        self._counts.duplicates += max(0, len(commit.ended) - len(commit.applied))
        self._counts.refused += len(commit.refused)
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
        self._counts.applied += len(commit.applied)

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
