"""The embedded engine as a model: queues, states and markers under one log.

A document's version counts its writes, so it does not depend on what else was written in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from outbox.message import Message
from outbox.ports import Commit, Conflict, Marker, Output, Refusal, StateDocument
from outbox.resubmission import is_copy, next_attempt, resubmission
from outbox.verify.explorer.models.queues import Claim, Dead, QueueModel, Queues, QueueState, selections
from outbox.verify.explorer.ops import (
    NO_LOCKS,
    Event,
    Locks,
    Op,
    Outcome,
    Raised,
    Reach,
    commit_text,
    delivery_text,
    short,
)


class JournalState(QueueState, frozen=True):
    """All that the engine remembers."""

    documents: tuple[tuple[str, StateDocument], ...] = ()
    markers: tuple[tuple[bytes, Marker, int], ...] = ()
    synced: JournalState | None = None
    """The state that a loss of power leaves; None: all of it."""


class PowerLost(msgspec.Struct, frozen=True):
    """The meaning of a loss of power: unsynced writes have not happened."""


class JournalModel:
    """A model of the engine's journal.

    One that is `gated` keeps what was written apart from what was synced: a commit is written first, and after it
    `durable` syncs all that was written before.
    """

    name = "journal"

    def __init__(
        self,
        queues: Sequence[QueueModel],
        routes: Mapping[str, Sequence[str]],
        *,
        documents: Mapping[str, StateDocument] | None = None,
        sent: Sequence[Output] = (),
        start_ms: int = 0,
        retentions_ms: Collection[int] = (),
        merges_copies: bool = True,
        resubmissions: int = 0,
        edits: Sequence[tuple[str, bytes]] = (),
        pauses_max: int = 0,
        gated: bool = False,
    ) -> None:
        self.queues = Queues(
            queues,
            routes,
            retentions_ms=retentions_ms,
            merges_copies=merges_copies,
            pauses_max=pauses_max,
            edits=edits,
        )
        self.tokens, self.due_ms = self.queues.tokens, self.queues.due_ms
        self._gated = gated
        known = tuple(sorted((documents or {}).items()))
        self._initial = JournalState(self.queues.filled(sent, start_ms), (), resubmissions, known)

    def initial(self) -> JournalState:
        return self._initial

    def reach(self, verb: str) -> Reach:
        return "write" if verb in ("commit", "resubmit") else "take" if verb in ("claim", "choose") else "read"

    def is_private(self, op: Op) -> bool:
        return False

    def is_spent(self, state: JournalState, op: Op) -> bool:
        return False

    def outcomes(self, state: JournalState, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        match op.verb:
            case "claim":
                paths, count_max, *until_ms = op.args
                if 0 < sum(until_ms) <= now_ms:
                    return []
                ready = self.queues.claim(state, paths, count_max, now_ms)
                return [*ready, *self._claim_blocked(state, paths, count_max, now_ms)]
            case "load":
                return [Outcome("", state, self._load(state, op.args[0], op.args[1], now_ms))]
            case "commit":
                return [self._commit(state, op.args[0], now_ms)]
            case "renew":
                held = sum(self.queues.holder(state, delivery) is not None for delivery in op.args[0])
                return [Outcome(f"-> {held} held", state, held)]
            case "release":
                return [Outcome("", self.queues.release(state, op.args[0]), None)]
            case "choose":
                return self.queues.chosen(state)
            case "resubmit":
                path, number, edit = op.args
                return [self._resubmit(state, path, number, edit, now_ms)]
        return [Outcome("", msgspec.structs.replace(state, synced=None), None)]

    def events(self, state: JournalState, now_ms: int) -> list[Event]:
        found = self.queues.events(state, now_ms)
        if self._gated:
            left = state.synced or state
            tasks = tuple(tuple(msgspec.structs.replace(t, is_locked=False) for t in queue) for queue in left.tasks)
            after = self._shown_anew(msgspec.structs.replace(left, tasks=tasks))
            found.append(Event("power is lost", after, None, "power", PowerLost(), ends_all=True))
        return found

    def _resubmit(self, state: JournalState, path: str, dead_number: int, edit: Message | None, now_ms: int) -> Outcome:
        """A dead letter takes its place again, as a new attempt; the note is the message that it is then."""
        if not any(self.queues.specs[dead.queue].path == path and dead.message == dead_number for dead in state.dead):
            return Outcome("-> nothing", state, None)
        number, message = self.queues.numbers[path], self.queues.messages[dead_number]
        copies = [each for each in self.queues.dead_letters(state, path) if is_copy(each.message, message)]
        attempt = next_attempt(message, [each.message for each in copies])
        again = resubmission(edit or message, attempt=attempt, enqueued_ms=now_ms)
        tasks = [list(queue) for queue in state.tasks]
        self.queues.put(tasks[number], number, Output(path, 0, again), now_ms)
        if self.queues.specs[number].is_ordered:  # nothing of its session was handled since
            tasks[number].insert(0, tasks[number].pop())
        state = self.queues.without_dead(state, path, [each.sequence for each in copies])
        state = self._shown_anew(msgspec.structs.replace(state, tasks=tuple(map(tuple, tasks))))
        return Outcome("", state, None, note=again)

    # Behind a dead letter

    def _claim_blocked(self, state: JournalState, paths: Sequence[str], count_max: int, now_ms: int) -> list[Outcome]:
        """Hand out messages behind a dead letter too, for their records: any that was not shown yet."""
        found: list[list[Claim]] = []
        for number in (self.queues.numbers[path] for path in paths):
            blocked = self.queues.blocked(state, number)
            for index, task in enumerate(state.tasks[number] if blocked else ()):
                is_there = not task.is_locked and not task.is_shown and (task.due_ms <= now_ms or task.rests)
                if is_there and self.queues.session(state, number, index) in blocked:
                    found.append([((number, index),)])
        return [self.queues.claimed(state, run, now_ms, NO_LOCKS, waits=True) for run in selections(found, count_max)]

    def _shown_anew(self, state: JournalState) -> JournalState:
        """The queues in which only messages still behind a dead letter count as shown."""
        for number, queue in enumerate(state.tasks):
            blocked = self.queues.blocked(state, number)
            for index, task in enumerate(queue):
                if task.is_shown and self.queues.session(state, number, index) not in blocked:
                    state = self.queues.changed(state, number, index, is_shown=False)
        return state

    # Reading

    @staticmethod
    def _load(
        state: JournalState, states: Sequence[str], markers: Sequence[bytes], now_ms: int
    ) -> tuple[dict[str, StateDocument], dict[bytes, Marker]]:
        documents = {id: d for id, d in state.documents if id in states and not 0 < d.expires_ms <= now_ms}
        kept = {key: m for key, m, until_ms in state.markers if key in markers and (until_ms > now_ms or not until_ms)}
        return documents, kept

    # Committing

    def _commit(self, state: JournalState, commit: Commit, now_ms: int) -> Outcome:
        for output in commit.outputs:
            if output.destination not in self.queues.routes:
                text = f"queue or topic {output.destination!r} does not exist"
                return Outcome("-> unknown destination", state, Raised("UnknownDestination", text))
        conflict = self._conflict(state, commit, now_ms)
        if conflict is not None:
            return Outcome("-> conflict", state, conflict)
        after = self._committed(state, commit, now_ms)
        return Outcome("", msgspec.structs.replace(after, synced=state.synced or state) if self._gated else after, None)

    def _conflict(self, state: JournalState, commit: Commit, now_ms: int) -> Conflict | None:
        settled = [*commit.consumed, *(dead.delivery for dead in commit.dead_lettered)]
        settled += [later.delivery for later in commit.postponed]
        sequences = [delivery.sequence for delivery in settled]
        locks = {d.sequence for d in settled if self.queues.holder(state, d) is None or sequences.count(d.sequence) > 1}
        documents, _ = self._load(state, list(commit.if_versions), (), now_ms)
        moved = {
            id
            for id, version in commit.if_versions.items()
            if (0 if (found := documents.get(id)) is None else found.version) != version
        }
        _, seen = self._load(state, (), [*commit.applied, *commit.refused], now_ms)
        taken = {key for key, marker in seen.items() if not _may_replace(marker, commit.replacing.get(key))}
        if locks or moved or taken:
            return Conflict(frozenset(locks), frozenset(moved), frozenset(taken))
        return None

    def _committed(self, state: JournalState, commit: Commit, now_ms: int) -> JournalState:
        tasks = [list(queue) for queue in state.tasks]
        dead = list(state.dead)
        for delivery in commit.consumed:
            self.queues.taken(tasks[self.queues.numbers[delivery.queue]], delivery)
        for one in commit.dead_lettered:
            number = self.queues.numbers[one.delivery.queue]
            _, task = self.queues.taken(tasks[number], one.delivery)
            dead.append(Dead(number, task.message, one.reason, one.failures, one.stops_key))
        for postponed in commit.postponed:
            number = self.queues.numbers[postponed.delivery.queue]
            index, task = self.queues.taken(tasks[number], postponed.delivery)
            task_session = self.queues.messages[task.message].session_id
            fields = {"due_ms": postponed.due_ms, "failures": postponed.failures, "rests": postponed.due_ms > 0}
            is_shown = postponed.delivery.waits and task_session in self.queues.blocked(state, number)
            again = msgspec.structs.replace(task, is_locked=False, from_outside=True, is_shown=is_shown, **fields)
            tasks[number].insert(index, again)
        for output in commit.outputs:
            for number in self.queues.routes[output.destination]:
                self.queues.put(tasks[number], number, output, now_ms)
        documents = dict(state.documents)
        for id, change in commit.states.items():
            old = documents.get(id)
            expires_ms = 0 if change.value else commit.markers_expire_ms
            version = 1 if old is None else old.version + 1
            documents[id] = StateDocument(change.value, version, change.schema, change.serial, expires_ms)
        markers = {key: (marker, until_ms) for key, marker, until_ms in state.markers}
        fresh: dict[bytes, Marker] = {**commit.applied, **commit.refused}
        markers |= {inbox: (marker, commit.markers_expire_ms) for inbox, marker in fresh.items()}
        return JournalState(
            tuple(map(tuple, tasks)),
            tuple(sorted(dead)),
            state.resubmissions,
            tuple(sorted(documents.items(), key=lambda pair: pair[0])),
            tuple((key, *markers[key]) for key in sorted(markers)),
        )

    def moments_ms(self, state: JournalState, now_ms: int) -> tuple[int, ...]:
        times = {*self.queues.fences_ms(state, now_ms)}
        times |= {expires_ms for _, _, expires_ms in state.markers if expires_ms > now_ms}
        times |= {document.expires_ms for _, document in state.documents if document.expires_ms > now_ms}
        return tuple(sorted(times))

    def show(self, state: JournalState, now_ms: int) -> list[str]:
        documents = [f"{id} = {d.value.decode() or 'deleted'} (version {d.version})" for id, d in state.documents]
        return [*documents, *self.queues.show(state, now_ms)]

    def describe(self, op: Op) -> str:
        match op.verb:
            case "commit":
                return f"commit {commit_text(op.args[0])}"
            case "load":
                return f"load {', '.join(op.args[0]) or 'markers'}"
            case "renew" | "release":
                return f"{op.verb} {', '.join(map(delivery_text, op.args[0]))}"
            case "choose":
                return "decide to resubmit"
            case "resubmit":
                how = "" if op.args[2] is None else ", edited"
                return f"resubmit {short(self.queues.messages[op.args[1]].identity)} to {op.args[0]}{how}"
        return op.verb


def _may_replace(marker: Marker, attempt: int | None) -> bool:
    return isinstance(marker, Refusal) and attempt is not None and marker.attempt < attempt
