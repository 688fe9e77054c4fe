"""One pass over a history: whether each message took effect once, and each output follows from a change that stands.

Theory of operation.  A history tells what was asked and what was answered; a commit takes effect somewhere between.
The pass keeps, for each message, state and output, the least that can contradict what is still to come:

    message   handed out and not ended (it may get lost), or ended (no redelivery)   `flow`
    inbox key applied (it may not be applied again)                                          `commits`
    state     its newest version                                                             `commits`
    log       the identity of each cell, and what each processor has taken                   `logs`
    result    of a pipeline, the digests of what it has made at a position                   `logs`
    output    who it went to and its digest                                                  `flow`

A commit without an answer waits (`Pending`) until something shows that it took effect or did not.  Silence is not
success: only at `quiesce` is everything that is still on its way lost, and a history that does not end with one does
not hold `at-least-once`.  What the system itself counts at `life` and `quiesce` is compared with what the history adds
up to: an acknowledged commit that a system has lost at its restart shows there, or at the first delivery of what that
commit had ended.

Time and memory are linear in the events; every memory is by identity, so a history may be split by key and judged in
parts.

Whether a run is one that could have been serial (`Serial`): each state has versions in a row, and each commit names
those that it started from; so there is an order in which every commit follows whatever it depended on.  The handlers
run again in that order, from what they themselves have made so far, must come to the same states and outputs.  A
decision on a stale read, a change that slipped past its condition, a handler that remembers something between messages:
all of them come out differently.  It needs a history with bodies that begins where the states do.  What cannot be run
again (a handler that waits for the outside, a body that lies elsewhere) is left out, with every later handling of its
states, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from outbox.verify.history import count_of
from outbox.verify.recorded.commits import OPEN, Commits, Number, places_of
from outbox.verify.recorded.events import (
    Blob,
    Change,
    Claim,
    Commit,
    Cut,
    Durable,
    Emitted,
    Fail,
    Found,
    Held,
    In,
    Left,
    Life,
    Ok,
    Push,
    Put,
    Quiesce,
    Read,
    Result,
    Settled,
    Torn,
    Unknown,
    Whole,
)
from outbox.verify.recorded.flow import Flow
from outbox.verify.recorded.logs import Bundles, Logs
from outbox.verify.recorded.verdict import (
    EXACTLY_ONCE,
    NO_QUIESCE,
    RECOVERABLE,
    Counts,
    Findings,
)

Place = tuple[str, int]
"""Queue and sequence of a delivery."""


class Redone(msgspec.Struct, frozen=True):
    """The result of handling a commit's messages again; the texts of a refusal do not matter."""

    changes: tuple[Change, ...]
    outputs: tuple[Emitted, ...]
    applied: tuple[str, ...]
    refused: tuple[str, ...]


class Rerun(Protocol):
    """Handles messages again and remembers the states that this makes."""

    def run(self, commit: Commit, deliveries: Sequence[tuple[Place, Whole]]) -> Redone | None:
        """Handle again what a commit did, in order of delivery; None if that cannot be done."""


class Serial:
    """Runs the commits of a history again, each as soon as the versions that it starts from are there."""

    def __init__(self, rerun: Rerun, findings: Findings) -> None:
        self._rerun = rerun
        self._findings = findings
        self._wholes: dict[Place, Whole] = {}
        self._versions: dict[str, int] = {}
        self._lost: set[str] = set()
        """States of which the value is not known."""
        self.is_complete = False
        """Whether the history begins where the states do."""
        self._waiting: dict[tuple[str, int], list[tuple[Commit, int]]] = {}

    def claimed(self, claim: Claim) -> None:
        """Keep the messages of a claim until they end."""
        for delivery, whole in zip(claim.deliveries, claim.wholes, strict=False):
            place = (delivery.queue, delivery.sequence)
            self._wholes.pop(place, None)  # so that the order is that of the newest claim
            self._wholes[place] = whole

    def took_effect(self, commit: Commit) -> None:
        """Run a commit again, or let it wait for the versions that it starts from."""
        todo = [(commit, self._findings.line)]
        while todo:
            commit, line = todo.pop()
            missing = self._missing(commit)
            if missing is not None:
                self._waiting.setdefault(missing, []).append((commit, line))
                continue
            self._redo(commit, line)
            for change in commit.changes:
                self._versions[change.state] = change.version
                todo += self._waiting.pop((change.state, change.version), [])

    def _missing(self, commit: Commit) -> tuple[str, int] | None:
        """A version that a commit starts from and that is not there yet."""
        for state, before in [
            *((c.state, c.before) for c in commit.changes),
            *((s.state, s.version) for s in commit.seen),
        ]:
            known = self._versions.get(state)
            if known is None and before > 0 and not self.is_complete:
                self._lost.add(state)
                self._versions[state] = before
            elif before > (known or 0):
                return state, before
        return None

    def _redo(self, commit: Commit, line: int) -> None:
        wanted = set(places_of(commit))
        order = wanted if len(wanted) == 1 else self._wholes  # that of the newest claims
        held = [(place, self._wholes[place]) for place in order if place in wanted and place in self._wholes]
        for place in wanted:
            self._wholes.pop(place, None)
        if not commit.applied and not commit.refused:
            return
        touched = [*(change.state for change in commit.changes), *(seen.state for seen in commit.seen)]
        redone = None
        if len(held) == len(wanted) and self._lost.isdisjoint(touched):
            redone = self._rerun.run(commit, held)
        if redone is None:
            self._findings.counts.not_rerun += 1
            self._lost.update(change.state for change in commit.changes)
            return
        self._findings.counts.rerun += 1
        difference = _difference(commit, redone)
        if difference:
            ids = tuple([ended.id for ended in commit.ended[:4]])
            self._lost.update(change.state for change in commit.changes)
            self._findings.add("not serializable", f"run again, {difference}", *ids, at=line)

    def finish(self) -> None:
        """Commits whose versions never came are in no order."""
        for (state, version), waiting in self._waiting.items():
            text = f"{len(waiting)} commits start from version {version} of state {state}, which no commit made"
            self._findings.add("not serializable", text, state, against=waiting[0][1])


def _difference(commit: Commit, redone: Redone) -> str:
    """The first thing that came out otherwise."""
    if (sorted(commit.applied), sorted(commit.refused)) != (sorted(redone.applied), sorted(redone.refused)):
        return f"{len(redone.applied)} messages are applied and {len(redone.refused)} refused, not as recorded"
    again = {change.state: change for change in redone.changes}
    for change in commit.changes:
        other = again.pop(change.state, None)
        if other is None or (other.version, other.digest) != (change.version, change.digest):
            return f"state {change.state} is not what was recorded as version {change.version}"
    for state in again:
        return f"state {state} changes, which it did not"
    known = [(output.id, output.destination, output.digest) for output in commit.outputs]
    found = [(output.id, output.destination, output.digest) for output in redone.outputs]
    if sorted(known) != sorted(found):
        wrong = sorted(set(known) ^ set(found))
        return f"output {wrong[0][0] if wrong else known[0][0]} is not what was recorded"
    return ""


class LinearCheck:
    """Feed it every event of a history in order, then `finish`.

    `alone` says that only the recorded workers take messages from their queues, and none expires: then a message
    that left unseen is a lost one.  `attempts` compares those at the same messages with each other, `rerun`
    handles messages again.
    """

    def __init__(
        self, findings: Findings, *, alone: bool = False, attempts: bool = False, rerun: Rerun | None = None
    ) -> None:
        self._findings = findings
        self.counts = findings.counts
        self._alone = alone
        self._flow = Flow(findings)
        self._logs = Logs(self._flow, findings)
        self._bundles = Bundles(self._logs, findings)
        self._commits = Commits(self._flow, self._logs, findings)
        self._attempts = Attempts(findings) if attempts else None
        self._recoverability = Recoverability(findings)
        self._serial = None if rerun is None else Serial(rerun, findings)
        if self._serial is not None:
            self._commits.on_effect = self._serial.took_effect
        self._blobs: dict[str, tuple[int, int]] = {}
        self._pushes: dict[Number, Push] = {}
        self._settles: dict[Number, Settled] = {}
        self._boot = ""
        self._quiesced = False
        self._cut, self._cut_line = "", 0
        self._on: dict[type[Any], Callable[[Any], None]] = {
            Life: self._life,
            In: self._in,
            Claim: self._claim,
            Held: self._held,
            Found: self._found,
            Commit: self._commit,
            Ok: self._ok,
            Fail: self._fail,
            Unknown: self._unknown,
            Push: self._push,
            Settled: self._settled,
            Blob: self._blob,
            Put: self._put,
            Read: self._read,
            Result: self._result,
            Durable: self._durable,
            Left: self._left,
            Quiesce: self._quiesce,
            Cut: self._was_cut,
        }

    def feed(self, event: Any) -> None:
        """Take the next event."""
        self._findings.line += 1
        self.counts.events += count_of(event)
        self.counts.torn += isinstance(event, Torn)
        handle = self._on.get(type(event))
        if handle is not None:
            handle(event)

    def finish(self) -> Counts:
        """Add the findings of the end, and return the counts."""
        self.counts.lines = self._findings.line
        if self._cut:
            self._findings.add(
                "cut", f"recording stopped here ({self._cut}): what came after is not known", at=self._cut_line
            )
        elif not self._quiesced:
            text = "the history ends before its queues were seen empty: what is unfinished looks like what is lost"
            self._findings.add(NO_QUIESCE, text)
        if self._serial is not None:
            self._serial.finish()
        return self.counts

    def _number(self, op: int) -> Number:
        return self.counts.lives, op

    # Lives

    def _life(self, life: Life) -> None:
        counts, versions = self.counts, self._commits.versions
        self._commits.orphan()
        for number in list(self._pushes):
            self._not_pushed(number)
        for settled in self._settles.values():
            self._flow.settle_perhaps(settled)
        self._settles.clear()
        counts.lives += 1
        first = counts.lives == 1
        if first:
            versions.is_complete = life.is_empty
            if self._serial is not None:
                self._serial.is_complete = life.is_empty
        if first or not life.boot or life.boot != self._boot:
            self._flow.excuse(life.sequence)
            if not first:
                versions.excuse()
        self._boot = life.boot
        self._quiesced = False
        if life.tallies:
            self._flow.compare(life.tallies, first=first)

    def _was_cut(self, cut: Cut) -> None:
        self._cut, self._cut_line = cut.why, self._findings.line
        self._boot = ""  # what the next life does not find in the history may have happened after the cut

    # Messages come

    def _in(self, event: In) -> None:
        self._quiesced = False
        for id, digest in event.messages:
            if event.index < 0:
                self._flow.accept(event.queue, id)
            else:
                self._logs.lies(event.queue, event.index, id, digest)

    def _claim(self, claim: Claim) -> None:
        self._quiesced = False
        flow, commits = self._flow, self._commits
        for delivery in claim.deliveries:
            commits.is_still_there(delivery.queue, delivery.sequence)
            if not delivery.outside and delivery.id not in flow.made:
                commits.must_have_sent(delivery.id, delivery.digest)
            flow.claim(delivery)
        if self._serial is not None:
            self._serial.claimed(claim)

    def _held(self, held: Held) -> None:
        for queue, sequence in held.deliveries:
            self._commits.is_still_there(queue, sequence)

    def _found(self, found: Found) -> None:
        for tx in found.txs:
            self._commits.was_found(tx)

    # Operations

    def _commit(self, commit: Commit) -> None:
        self._quiesced = False
        self._commits.begin(commit, self._number(commit.op))
        if self._attempts is not None:
            self._attempts.note(commit)

    def _ok(self, ok: Ok) -> None:
        number = self._number(ok.op)
        if self._commits.ok(number):
            return
        if number in self._pushes:
            self._pushed(self._pushes.pop(number))
        elif number in self._settles:
            self._flow.settle(self._settles.pop(number))

    def _fail(self, fail: Fail) -> None:
        number = self._number(fail.op)
        self._commits.fail(number, fail.why)
        self._not_pushed(number)
        self._settles.pop(number, None)

    def _unknown(self, unknown: Unknown) -> None:
        number = self._number(unknown.op)
        self._commits.unknown(number)
        self._not_pushed(number)
        if number in self._settles:
            self._flow.settle_perhaps(self._settles.pop(number))

    def _not_pushed(self, number: Number) -> None:
        push = self._pushes.pop(number, None)
        if push is not None:
            self._flow.refused(push)

    def _push(self, push: Push) -> None:
        self._quiesced = False
        self._pushes[self._number(push.op)] = push
        self.counts.pushes += len(push.outputs)
        for output in push.outputs:
            if not output.cause:
                self._flow.accept(output.destination, output.id)
            elif not self._flow.leave(output):
                self._leave_early(output)

    def _leave_early(self, output: Emitted) -> None:
        """Something leaves that no commit is known to have made, or that it had made otherwise."""
        sources = self._commits.senders(output.id, output.digest)
        if not sources:
            if self._commits.may_have_sent(output.id):
                self._flow.emit(output, self._findings.line, staged=True)
            elif self._commits.versions.is_complete:
                text = f"output {output.id} left, but no commit had made it"
                self._findings.add("ghost output", text, output.id, also=(RECOVERABLE,))
        elif all(source.status == OPEN for source in sources):
            text = f"output {output.id} left before the commit of line {sources[0].line} was answered"
            self._findings.add("left early", text, output.id, against=sources[0].line)
        else:  # its sender has read what a commit stored
            self._commits.must_have_sent(output.id, output.digest)
            self._flow.leave(output)

    def _pushed(self, push: Push) -> None:
        self._flow.pushed(push)
        for output in push.outputs:
            if output.index >= 0:
                self._logs.lies(output.destination, output.index, output.id, output.digest)

    def _read(self, read: Read) -> None:
        self._quiesced = False
        for index, id, digest in read.cells:
            if id not in self._flow.made and self._commits.senders(id, digest):
                self._commits.must_have_sent(id, digest)
            self._logs.lies(read.log, index, id, digest)

    def _settled(self, settled: Settled) -> None:
        if settled.how in ("complete", "dead-letter"):
            self._settles[self._number(settled.op)] = settled

    def _blob(self, blob: Blob) -> None:
        earlier = self._blobs.setdefault(blob.name, (blob.digest, self._findings.line))
        if earlier[0] != blob.digest:
            text = f"blob {blob.name} is written with other bytes than in line {earlier[1]}"
            self._findings.add("changed blob", text, blob.name, against=earlier[1])

    def _put(self, put: Put) -> None:
        self._commits.versions.put(put.state, put.version)

    # Results without commits

    def _result(self, result: Result) -> None:
        self._recoverability.result(result)
        if result.sink:
            self._quiesced = False
            self._bundles.result(result)

    def _durable(self, durable: Durable) -> None:
        self._recoverability.durable(durable)
        self._bundles.durable(durable)

    def _left(self, left: Left) -> None:
        parents = self._bundles.left(left) if left.sink else []
        self._recoverability.left(msgspec.structs.replace(left, parents=[*left.parents, *parents]))

    # Silence

    def _quiesce(self, quiesce: Quiesce) -> None:
        """Decide optional commits, because everything that could happen has, then name the missing effects."""
        self._quiesced = True
        self._commits.quiesce()
        self._flow.quiesce(quiesce, alone=self._alone)
        self._bundles.quiesce()
        self._logs.quiesce(quiesce.queues)


class Attempts:
    """The results of each attempt, by its start: determinism as far as a run shows it.

    Definition 10 of the FlameStream paper wants one output for one input, whatever happens.  A run shows what its
    attempts did: two commits that end the same deliveries in the same order and start from the same versions are two
    attempts at one thing.  If their states or outputs differ, the handler looked at a clock, at chance or at the
    outside.  That is allowed as long as only one of them takes effect, so this promise is asked for by name.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._seen: dict[int, tuple[int, int]] = {}

    def note(self, commit: Commit) -> None:
        """Compare an attempt with an earlier one at the same."""
        if not commit.ended:
            return
        start = hash(
            (
                tuple([(ended.queue, ended.sequence) for ended in commit.ended]),
                tuple(
                    sorted(
                        [(change.state, change.before) for change in commit.changes]
                        + [(seen.state, seen.version) for seen in commit.seen]
                    )
                ),
            )
        )
        did = hash(
            (
                tuple([(change.state, change.version, change.digest) for change in commit.changes]),
                tuple([(output.id, output.destination, output.digest) for output in commit.outputs]),
                tuple(commit.refused),
            )
        )
        earlier = self._seen.setdefault(start, (did, self._findings.line))
        if earlier[0] != did:
            ids = tuple([ended.id for ended in commit.ended[:4]])
            text = f"an attempt at {', '.join(ids)} did something else than the one of line {earlier[1]}"
            self._findings.add("attempts differ", text, *ids, against=earlier[1])


@dataclass(slots=True)
class Node:
    """A result: what it was computed from, and whether losing it could show."""

    parents: tuple[str, ...]
    is_safe: bool
    line: int


class Recoverability:
    """Theorem 1 of the FlameStream paper: what leaves must not depend on what could still be lost.

    For every output y and every result z that y was computed from, at whatever distance: unless z's operator commutes
    or its order is enforced, z must be recoverable before y leaves.  Otherwise a failure between the two makes z anew,
    perhaps in another order, and a second output contradicts the first.

    What counts as recoverable is the recorder's word, under the failures that it declared: a snapshot that holds z, an
    outbox record, a synced log, a determinant that another process keeps.  For commits of the runtime the rule needs no
    such events: their outputs leave after their answer.

    Linear in results and their parents: a result all of whose past is safe is never looked behind again, and an unsafe
    one is reported once.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._nodes: dict[str, Node] = {}

    def result(self, result: Result) -> None:
        """An operator made something."""
        safe = result.is_commutative or result.is_ordered
        self._nodes[result.id] = Node(tuple(result.parents), safe, self._findings.line)

    def durable(self, durable: Durable) -> None:
        """It can be recovered from here on."""
        node = self._nodes.get(durable.id)
        if node is not None:
            node.is_safe = True

    def left(self, left: Left) -> None:
        """Something that depends on results left the system."""
        todo = list(left.parents)
        path: set[str] = set()
        while todo:
            id = todo[-1]
            node = self._nodes.get(id)
            if node is None or id in path:
                todo.pop()
                if node is not None and not any(self._is_open(parent) for parent in node.parents):
                    node.parents = ()  # all its past is safe: never to be looked behind again
                continue
            path.add(id)
            if not node.is_safe:
                text = (
                    f"output {left.id} left while result {id} of line {node.line}, on which it depends, could be lost"
                )
                self._findings.add("left early", text, left.id, id, against=node.line, also=(EXACTLY_ONCE,))
                node.is_safe = True  # said once
            todo += [parent for parent in node.parents if parent not in path]

    def _is_open(self, id: str) -> bool:
        node = self._nodes.get(id)
        return node is not None and (not node.is_safe or bool(node.parents))
