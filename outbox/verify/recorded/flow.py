"""The way of every message through a history: accepted, handed out, ended; made by a commit, handed on or left.

Nothing may end twice, be redelivered after it has ended, or arrive without having been made; at `quiesce` nothing may
be on its way.  Messages are identified by queue and sequence where handed out, by identity where made.
"""

from __future__ import annotations

import sys

from outbox.verify.recorded.events import Buried, Delivered, Emitted, Ended, Postponed, Push, Quiesce, Settled, Tally
from outbox.verify.recorded.verdict import Findings

SUBSCRIPTIONS = "/Subscriptions/"


class Flow:
    """Every message under way, and the memory of the others."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._accepted: dict[str, dict[str, int]] = {}
        self._held: dict[str, dict[int, Delivered]] = {}
        self._resting: dict[str, dict[int, int]] = {}
        """The rescheduled ones among the messages handed out."""
        self._ended: dict[str, set[int]] = {}
        self._buried: dict[str, dict[int, int]] = {}
        self.made: dict[str, tuple[str, int, int, int]] = {}
        """Outputs by identity: destination, digest, when due (-1: it is there) and line."""
        self._fresh: list[str] = []
        """Outputs made since the last quiesce, and the ones not due then."""
        self._taken: dict[str, set[str]] = {}
        """Of topics, what each subscription was handed."""
        self.unpushed: dict[str, int] = {}
        """Outputs that a commit has made and that are not known to have left, and the line of that."""
        self._completed: set[int] = set()
        """Messages that a broker has completed, hashed."""
        self._sent_to: dict[str, int] = {}
        self._base: dict[str, Tally] = {}
        self._explained: dict[str, int] = {}
        self._excused_sequence = 0
        self._excused_line = 0
        self._doubtful: dict[str, set[int]] = {}
        """Messages handed out before lines were lost: they may have ended in one of those."""

    # Come

    def excuse(self, sequence: int) -> None:
        """Lines before this one are lost: up to a sequence number, messages may have come or ended in them."""
        self._excused_sequence = sequence
        if self._findings.counts.lives > 1:
            self._excused_line = self._findings.line
            self._doubtful = {queue: set(held) for queue, held in self._held.items()}

    def accept(self, queue: str, id: str) -> None:
        """A message was accepted from outside."""
        self._accepted.setdefault(queue, {})[id] = self._findings.line

    def refused(self, push: Push) -> None:
        """These were not accepted."""
        for output in push.outputs:
            if not output.cause:
                self._accepted.get(output.destination, {}).pop(output.id, None)

    def claim(self, delivery: Delivered) -> None:
        """A message was handed out."""
        id, queue, sequence = delivery.id, delivery.queue, delivery.sequence
        if sequence in self._ended.get(queue, ()):
            self._redelivered(delivery)
        self._held.setdefault(queue, {})[sequence] = delivery
        self._resting.get(queue, {}).pop(sequence, None)
        self._doubtful.get(queue, set()).discard(sequence)
        self._accepted.get(queue.partition(SUBSCRIPTIONS)[0], {}).pop(id, None)
        made = self.made.get(id)
        if made is not None:
            self._arrive(delivery, made)
        elif not delivery.outside:
            if sequence <= self._excused_sequence:
                self._findings.counts.unrecorded += self._excused_line > 0
            else:
                self._findings.add(
                    "ghost output", f"message {id} was handed out from {queue}, but no commit had made it", id
                )

    def _arrive(self, delivery: Delivered, made: tuple[str, int, int, int]) -> None:
        destination, digest, _, at = made
        if digest != delivery.digest:
            text = f"message {delivery.id} was handed out with another payload than line {at} had sent"
            self._findings.add("changed payload", text, delivery.id, against=at)
        if destination == delivery.queue:
            self.made[delivery.id] = (destination, digest, -1, at)
        elif delivery.queue.startswith(destination + SUBSCRIPTIONS):
            self._taken.setdefault(delivery.queue, set()).add(delivery.id)

    def _redelivered(self, delivery: Delivered) -> None:
        buried = self._buried.get(delivery.queue, {})
        attempt = buried.get(delivery.sequence)
        self._ended[delivery.queue].discard(delivery.sequence)
        if attempt is not None and delivery.attempt > attempt:
            del buried[delivery.sequence]  # it was resubmitted
            return
        text = f"message {delivery.id} ({delivery.queue} {delivery.sequence}) had ended and was handed out again: "
        self._findings.add("lost commit", text + "the commit that ended it was lost", delivery.id)

    # End

    def has_ended(self, queue: str, sequence: int) -> bool:
        """Whether a delivery has ended."""
        return sequence in self._ended.get(queue, ())

    def end(self, ended: Ended) -> None:
        """A delivery ends."""
        queue, sequence = ended.queue, ended.sequence
        done = self._ended.setdefault(queue, set())
        self._held.get(queue, {}).pop(sequence, None)
        if sequence in done:
            self._findings.add(
                "ended twice", f"message {ended.id} ({queue} {sequence}) was ended by another commit before", ended.id
            )
        done.add(sequence)

    def bury(self, buried: Buried) -> None:
        """A delivery is dead-lettered."""
        self.end(Ended(buried.queue, buried.sequence, buried.id))
        self._buried.setdefault(buried.queue, {})[buried.sequence] = buried.attempt

    def postpone(self, postponed: Postponed) -> None:
        """A delivery is rescheduled."""
        self._resting.setdefault(postponed.queue, {})[postponed.sequence] = postponed.due_ms

    def settle(self, settled: Settled) -> None:
        """A broker has ended a delivery."""
        if settled.how == "complete":
            self._completed.add(hash((settled.queue, settled.id)))
            self.end(Ended(settled.queue, settled.sequence, settled.id))
        else:
            self.bury(Buried(settled.queue, settled.sequence, settled.id))

    def settle_perhaps(self, settled: Settled) -> None:
        """It is unknown whether a broker has ended a delivery: it may be redelivered."""
        self._resting.setdefault(settled.queue, {})[settled.sequence] = sys.maxsize

    # Leave

    def emit(self, output: Emitted, line: int, *, staged: bool) -> None:
        """A commit that took effect sends something."""
        earlier = self.made.get(output.id)
        if earlier is not None:
            text = f"output {output.id} was sent before, by line {earlier[3]}"
            self._findings.add("doubled output", text, output.id, against=earlier[3], at=line)
            if earlier[1] != output.digest:
                text = f"output {output.id} has another payload than in line {earlier[3]}"
                self._findings.add("changed payload", text, output.id, against=earlier[3], at=line)
            return
        self.made[output.id] = (output.destination, output.digest, output.due_ms, line)
        self._fresh.append(output.id)
        self._findings.counts.outputs += 1
        if staged:
            self.unpushed[output.id] = line
        else:
            self._sent_to[output.destination] = self._sent_to.get(output.destination, 0) + 1

    def leave(self, output: Emitted) -> bool:
        """Something that a commit has made is pushed; False if no commit is known to have."""
        made = self.made.get(output.id)
        if made is None:
            return False
        strays = output.id in self.unpushed and made[0] != output.destination  # a delayed copy goes where it came from
        if made[1] != output.digest or strays:
            text = f"output {output.id} leaves with another payload or destination than line {made[3]} had stored"
            self._findings.add("changed payload", text, output.id, against=made[3])
        return True

    def pushed(self, push: Push) -> None:
        """The outputs of a push have arrived."""
        for output in push.outputs:
            self.unpushed.pop(output.id, None)

    def lies(self, log: str, id: str, digest: int) -> None:
        """A cell lies in a log: whoever appended it, it has arrived."""
        self._accepted.get(log, {}).pop(id, None)
        self.unpushed.pop(id, None)
        made = self.made.get(id)
        if made is None:
            return
        destination, known, _, at = made
        self.made[id] = (destination, known, -1, at)
        if destination != log or known != digest:
            text = f"{id} lies in {log} with another payload or destination than line {at} had stored"
            self._findings.add("changed payload", text, id, against=at)

    # What the system counts

    def compare(self, tallies: dict[str, Tally], *, first: bool) -> None:
        """At the start of a process: does the system still hold every acknowledged commit?"""
        if first:
            self._base = dict(tallies)
            return
        for queue, tally in tallies.items():
            base = self._base.setdefault(queue, Tally(0, 0))
            ended, free = len(self._ended.get(queue, ())), len(self._buried.get(queue, ()))  # these may be resubmitted
            self._short(queue, "left", tally.left - base.left + free, ended)
            self._short(queue, "came to", tally.received - base.received, self._sent_to.get(queue, 0))

    def _short(self, queue: str, verb: str, counted: int, known: int) -> None:
        if counted < known:
            text = f"{known:,} messages {verb} {queue} by acknowledged commits, the system knows of {counted:,}: "
            self._findings.add("lost commit", text + "commits were lost", queue)

    # Silence

    def quiesce(self, quiesce: Quiesce, *, alone: bool) -> None:
        """Whatever is on its way now is lost."""
        for queue in quiesce.queues:
            self._check_held(queue, quiesce)
            for id, at in self._accepted.pop(queue.partition(SUBSCRIPTIONS)[0], {}).items():
                self._missing(
                    "lost message", f"message {id} was accepted for {queue} in line {at} and never handed out", id, at
                )
        self._check_made(quiesce)
        for id, at in self.unpushed.items():
            self._missing("lost output", f"output {id} of line {at} was never pushed", id, at)
        self.unpushed.clear()
        handled = self._findings.counts.applied + self._findings.counts.refused
        if self._findings.counts.lives == 1 and len(self._completed) > handled:
            text = f"{len(self._completed):,} messages were completed, but only {handled:,} handlings are on record"
            self._findings.add("completed without a commit", text)
        self.compare(quiesce.tallies, first=False)
        for queue in quiesce.queues:
            if queue in quiesce.tallies:
                self._explain(queue, quiesce.tallies[queue], alone=alone)

    def _missing(self, what: str, text: str, id: str, at: int) -> None:
        """Something of a line never went on; where lines behind it are lost, those may tell of it."""
        if at < self._excused_line:
            self._findings.counts.unrecorded += 1
        else:
            self._findings.add(what, text, id, against=at)

    def _check_held(self, queue: str, quiesce: Quiesce) -> None:
        held, ended = self._held.pop(queue, {}), self._ended.setdefault(queue, set())
        dead, resting = set(quiesce.dead.get(queue, ())), self._resting.get(queue, {})
        buried = self._buried.setdefault(queue, {})
        for sequence in dead:  # some by the system itself; any of them may be resubmitted, with a raised attempt
            buried.setdefault(sequence, held[sequence].attempt if sequence in held else -1)
        for sequence, delivery in held.items():
            if sequence in dead or sequence in ended:
                continue
            if resting.get(sequence, 0) > quiesce.at_ms:  # it is redelivered
                self._held.setdefault(queue, {})[sequence] = delivery
                continue
            if sequence in self._doubtful.get(queue, ()):
                self._findings.counts.unrecorded += 1
                continue
            text = f"message {delivery.id} ({queue} {sequence}) was handed out and never ended"
            self._findings.add("lost message", text, delivery.id)
        ended |= dead

    def _check_made(self, quiesce: Quiesce) -> None:
        queues = set(quiesce.queues)
        topics: dict[str, list[str]] = {}
        for queue in queues:
            topic, is_subscription, _ = queue.partition(SUBSCRIPTIONS)
            if is_subscription:
                topics.setdefault(topic, []).append(queue)
        fresh, self._fresh = self._fresh, []
        for id in fresh:
            destination, _, due_ms, at = self.made[id]
            if due_ms > quiesce.at_ms:
                self._fresh.append(id)
                continue
            missed = destination in queues and due_ms >= 0
            if destination in topics:
                missed = any(id not in self._taken.get(path, ()) for path in topics[destination])
            if missed:
                self._missing("lost output", f"output {id} of line {at} never came out of {destination}", id, at)

    def _explain(self, queue: str, tally: Tally, *, alone: bool) -> None:
        """Name what left a queue without having been handed to a recorded worker."""
        base = self._base.setdefault(queue, Tally(0, 0))
        more = tally.left - base.left - len(self._ended[queue]) - self._explained.get(queue, 0)
        if more <= 0:
            return
        self._explained[queue] = self._explained.get(queue, 0) + more
        if self._excused_line:
            self._findings.counts.unrecorded += more
        elif alone:
            self._findings.add(
                "lost message", f"{more:,} messages left {queue} without having been handed to a worker", queue
            )
        else:
            self._findings.counts.unexplained += more
