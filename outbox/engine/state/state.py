"""Everything that the engine remembers, as a pure function of the records applied.

Live and at open the same methods run, so a replay cannot differ from what happened.  Nothing here reads a clock,
writes a log or decides whether a change is allowed: `broker`, `topology`, `documents` and `journal` do, before the
record exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from outbox.engine.entities import (
    DEAD_LETTER_SUFFIX,
    QueueSettings,
    Settlement,
    TopicSettings,
    dead_letter_path,
    subscription_path,
)
from outbox.engine.log import records
from outbox.engine.state.documents import DocumentSpaces
from outbox.engine.state.markers import Markers
from outbox.engine.state.plain_order import PlainOrder
from outbox.engine.state.queues import DISCARDED, PAUSED_QUEUES, Queue
from outbox.engine.state.rules import Rules, admits
from outbox.engine.state.session_order import SessionOrder
from outbox.engine.state.tasks import (
    ACTIVE,
    DEFERRED,
    LOCKED,
    SCHEDULED,
    Task,
    held_bytes,
    held_bytes_of,
)
from outbox.lineage import fingerprint
from outbox.message import Message, Scalar
from outbox.ports import Output, StateDocument

OPERATION_COUNT_MAX = 100_000
"""How many operation ids are remembered, oldest forgotten first."""


class State:
    """Queues, documents, markers, operation ids and counters."""

    def __init__(self) -> None:
        self.queues: list[Queue] = []
        self.paths: dict[str, Queue] = {}
        self.topics: dict[str, TopicSettings] = {}
        self.routes: dict[str, tuple[Queue, ...]] = {}
        self.rules: Rules = {}
        self.free: list[int] = []
        """The numbers of queues that are gone, lowest first."""
        self.documents = DocumentSpaces()
        self.markers = Markers()
        self.operations: dict[str, tuple[int, list[int]]] = {}
        self.sequence = 0
        self.time_ms = 0
        self.message_bytes = 0
        """The bytes of the contents of messages."""
        self.on_dead_lettered: Callable[[str, Task], None] | None = None
        """Called with the queue and message that the engine itself dead-letters; set after a log was replayed."""
        self._apply: dict[type[Any], Callable[[Any, int], None]] = {
            records.Opened: self._opened,
            records.Declared: self._declared,
            records.Sent: self._sent,
            records.Claimed: self._claimed,
            records.Settled: self._settled,
            records.Lapsed: self._lapsed,
            records.Cancelled: self._cancelled,
            records.Resubmitted: self._resubmitted,
            records.SessionSet: self._session_set,
            records.Committed: self._committed,
            records.Modified: self._modified,
            records.Ruled: self._ruled,
            records.Routed: self._routed,
            records.Deleted: self._deleted,
        }

    @property
    def body_bytes(self) -> int:
        """The bytes of the contents of messages and documents and of the replies of requests."""
        return self.message_bytes + self.documents.value_bytes + self.markers.reply_bytes

    @property
    def held_bytes(self) -> int:
        """An estimate of what it takes in memory: the bodies, and what lies round them."""
        task_count = sum([len(queue.tasks) for queue in self.queues])
        around = task_count * 700 + self.documents.count * 400 + len(self.markers.known) * 200
        return self.message_bytes + self.documents.value_bytes + self.markers.reply_bytes + around

    def apply(self, record: records.Record, version: int) -> None:
        """Let a record take effect; `version` is the epoch and ordinal under which it was logged."""
        self._apply[type(record)](record, version)

    # Declarations

    def _declared(self, record: records.Declared, version: int) -> None:
        for settings in record.queues:
            self._declare_queue(settings.name, settings)
        for topic in record.topics:
            known = self.topics.get(topic.name)
            merged = tuple(dict.fromkeys((*(known.subscriptions if known else ()), *topic.subscriptions)))
            self.topics[topic.name] = TopicSettings(topic.name, merged)
            self._route_topic(topic.name)

    def _route_topic(self, name: str) -> None:
        """Say anew where messages to a topic go."""
        paths = [subscription_path(name, subscription) for subscription in self.topics[name].subscriptions]
        self.routes[name] = tuple(self.paths[path] for path in paths if path in self.paths)

    def _declare_queue(self, path: str, settings: QueueSettings) -> None:
        known = self.paths.get(path)
        if known is not None:
            known.settings = self.queues[known.number + 1].settings = settings
            return
        if not self.free:
            self.free_slot(len(self.queues))
        number = self.free.pop(0)
        for at, name in ((number, path), (number + 1, dead_letter_path(path))):
            self.queues[at] = self.paths[name] = Queue(at, name, settings, is_primary=at == number)
        self.routes[path] = (self.paths[path],)

    def _ruled(self, record: records.Ruled, version: int) -> None:
        self.rules[record.path] = {item.name: item for item in record.rules}

    def _deleted(self, record: records.Deleted, version: int) -> None:
        topic = self.topics.pop(record.path, None)
        if topic is None:
            self._delete_queue(record.path)
            return
        for name in topic.subscriptions:
            self._delete_queue(subscription_path(topic.name, name))
        del self.routes[topic.name]

    def _delete_queue(self, path: str) -> None:
        number = self.paths[path].number
        for at in (number, number + 1):
            self.message_bytes -= sum(held_bytes(task.message) for task in self.queues[at].tasks.values())
            del self.paths[self.queues[at].path]
        self.free_slot(number)
        self.routes.pop(path, None)
        self.rules.pop(path, None)
        self.documents.drop(PAUSED_QUEUES, path)
        for id in list(self.documents.spaces.get(DISCARDED + path, ())):
            self.documents.drop(DISCARDED + path, id)
        for topic in list(self.topics.values()):
            kept = tuple(name for name in topic.subscriptions if subscription_path(topic.name, name) != path)
            if kept != topic.subscriptions:
                self.topics[topic.name] = TopicSettings(topic.name, kept)
                self._route_topic(topic.name)

    def free_slot(self, number: int) -> None:
        """Let the next queue have this number; until then, whatever names it meets an empty one without a path."""
        for at, path in ((number, ""), (number + 1, DEAD_LETTER_SUFFIX)):
            empty = Queue(at, path, QueueSettings(""), is_primary=False)
            if at < len(self.queues):
                self.queues[at] = empty
            else:
                self.queues.append(empty)
        self.free = sorted((*self.free, number))

    # Messages from outside

    def _opened(self, record: records.Opened, version: int) -> None:
        self.time_ms = max(self.time_ms, record.now_ms)
        for queue in list(self.queues):
            for task in [task for task in queue.tasks.values() if task.status == LOCKED]:
                self._unlock(queue, task, record.now_ms, counted=True)

    def _sent(self, record: records.Sent, version: int) -> None:
        self.time_ms = max(self.time_ms, record.now_ms)
        for queue in self.routes[record.path]:
            for message in record.messages:
                if not queue.is_duplicate(message.broker_id, record.now_ms):
                    digest = fingerprint(message.body, message.type)
                    self._insert(queue, message, record.now_ms, record.due_ms, version, digest)

    def _routed(self, record: records.Routed, version: int) -> None:
        self.time_ms = max(self.time_ms, record.now_ms)
        digests = [fingerprint(message.body, message.type) for message in record.messages]
        for number, indexes in record.parts:
            queue = self.queues[number]
            for index in indexes:
                message = record.messages[index]
                if not queue.is_duplicate(message.broker_id, record.now_ms):
                    self._insert(queue, message, record.now_ms, record.due_ms, version, digests[index])

    def _insert(self, queue: Queue, message: Message, now_ms: int, due_ms: int, version: int, digest: bytes) -> None:
        """Put a message into a queue under the next sequence number; one from outside has its payload's digest.

        A scheduled one arrives when it is due: from then on it ages.  None lives longer than its queue lets it.
        """
        self.sequence = sequence = self.sequence + 1
        status, since_ms = (SCHEDULED, due_ms) if due_ms > now_ms else (ACTIVE, now_ms)
        task = Task(sequence, queue.path, message, since_ms, version, status, due_ms, 0, 0, 0, digest != b"", digest)
        if message.time_to_live_ms or queue.settings.time_to_live_s:
            ceiling_ms = round(queue.settings.time_to_live_s * 1_000) or message.time_to_live_ms
            task.expires_ms = max(now_ms, due_ms) + min(message.time_to_live_ms or ceiling_ms, ceiling_ms)
        self.message_bytes += held_bytes(message)
        queue.append(task)

    def _claimed(self, record: records.Claimed, version: int) -> None:
        tasks = self.queues[record.queue].tasks
        for sequence in record.sequences:
            task = tasks[sequence]
            if task.status != LOCKED:  # only in a replay; a store costs several times what a look does
                task.status = LOCKED
            task.version = version
            if record.outside:  # whoever has it may send it on: a marker is to know the copy
                task.external, task.set_aside = True, True if record.deferred else msgspec.UNSET

    def _settled(self, record: records.Settled, version: int) -> None:
        self.time_ms = max(self.time_ms, record.now_ms)
        queue, how = self.queues[record.queue], Settlement(record.how)
        for sequence in record.sequences:
            task = queue.tasks[sequence]
            task.version = version
            if record.wire:
                self._rewrite(task, record.wire, record.properties)
            if how is Settlement.COMPLETE:
                self.remove(queue, task)
            elif how is Settlement.DEAD_LETTER:
                self._dead_letter(queue, task, record.reason, record.description)
            elif how is Settlement.DEFER:
                task.status, task.lock = DEFERRED, 0
                queue.order.unlocked(task)
            else:
                task.description = record.description or task.description
                self._unlock(queue, task, record.now_ms, counted=how is Settlement.ABANDON)

    def _rewrite(self, task: Task, wire: bytes, properties: dict[str, Scalar] | None) -> None:
        """Let a message have the properties that its receiver set."""
        before_bytes = held_bytes(task.message)
        task.message = msgspec.structs.replace(task.message, wire=wire, properties=properties)
        self.message_bytes += held_bytes(task.message) - before_bytes

    def _unlock(self, queue: Queue, task: Task, now_ms: int, *, counted: bool) -> None:
        task.status, task.lock = DEFERRED if task.set_aside is True else ACTIVE, 0
        task.delivery_count += counted
        if counted and task.delivery_count >= queue.settings.max_delivery_count and queue.is_primary:
            text = f"delivered {task.delivery_count} times without being settled"
            self._dead_letter_over_limit(queue, task, "MaxDeliveryCountExceeded", text)
            return
        queue.order.returned(task)
        queue.index(task)
        queue.order.unlocked(task)

    def _lapsed(self, record: records.Lapsed, version: int) -> None:
        self.time_ms = max(self.time_ms, record.now_ms)
        queue = self.queues[record.queue]
        for sequence in record.unlocked:
            self._unlock(queue, queue.tasks[sequence], record.now_ms, counted=True)
        for sequence in record.expired:
            task = queue.tasks[sequence]
            if queue.settings.dead_letter_on_expiry and queue.is_primary:
                text = "the message expired and was dead lettered"
                self._dead_letter_over_limit(queue, task, "TTLExpiredException", text)
            else:
                self.remove(queue, task)

    def _cancelled(self, record: records.Cancelled, version: int) -> None:
        self._consume(self.queues[record.queue], record.sequences)

    def _resubmitted(self, record: records.Resubmitted, version: int) -> None:
        self.time_ms = max(self.time_ms, record.now_ms)
        dead = self.queues[record.queue]
        task = dead.tasks[record.sequence]
        self.remove(dead, task)
        queue = self.queues[record.queue - 1]
        fresh = Task(task.sequence, queue.path, record.message, record.now_ms, version, external=task.external)
        self._put(queue, fresh)

    def _session_set(self, record: records.SessionSet, version: int) -> None:
        self.queues[record.queue].sessions.session(record.session).state = record.state

    # What may happen to one task

    def remove(self, queue: Queue, task: Task) -> None:
        """Take a task out of the engine for good."""
        del queue.tasks[task.sequence]
        self.message_bytes -= held_bytes(task.message)
        queue.order.unlocked(task)
        if queue.letters is not None:
            queue.letters.drop(task)
        self._unblock(queue, task)

    def _unblock(self, dead: Queue, task: Task) -> None:
        """Unblock the session behind a dead letter that is leaving its queue."""
        if not task.stops_session:
            return
        task.stops_session = False
        order = None if dead.is_primary else self.queues[dead.number - 1].order
        if isinstance(order, SessionOrder):
            order.unblock(order.session(task.message.session_id), task.sequence)

    def _dead_letter_over_limit(self, queue: Queue, task: Task, reason: str, description: str) -> None:
        """Dead-letter a task because of the queue's own limits."""
        self._dead_letter(queue, task, reason, description, stops_session=queue.settings.stop_key)
        if self.on_dead_lettered is not None:
            self.on_dead_lettered(queue.path, task)

    def _dead_letter(
        self, queue: Queue, task: Task, reason: str, description: str, *, stops_session: bool = False
    ) -> None:
        """Move a task to the dead-letter sub-queue; a task that is there already stays."""
        dead = self.queues[queue.number + 1] if queue.is_primary else queue
        del queue.tasks[task.sequence]
        task.path, task.status, task.lock, task.set_aside = dead.path, ACTIVE, 0, msgspec.UNSET
        task.due_ms = task.expires_ms = 0
        task.reason, task.description = reason, description
        if stops_session and isinstance(queue.order, SessionOrder):
            task.stops_session = True
            queue.order.block(queue.order.session(task.message.session_id), task.sequence)
        queue.order.unlocked(task)
        dead.tasks[task.sequence] = task
        dead.index(task)

    # Engine scope

    def _committed(self, record: records.Committed, version: int) -> None:
        now_ms = record.now_ms
        self.time_ms = max(self.time_ms, now_ms)
        for number, sequences in record.consumed.items():
            self._consume(self.queues[number], sequences)
        self.documents.save(record.states, version, record.markers_expire_ms)
        if record.applied or record.refused:
            self.forget(now_ms)  # what is remembered is the records' doing, not that of whoever looked at the time
            self.markers.add(record.applied, record.refused, record.markers_expire_ms)
        self._emit(record.outputs, now_ms, version)
        for dead in record.dead_lettered:
            queue = self.queues[dead.queue]
            task = queue.tasks[dead.sequence]
            task.failures, task.version = dead.failures, version
            if record.refused:
                task.remembered_until_ms = record.markers_expire_ms
            self._dead_letter(queue, task, dead.reason, dead.description, stops_session=dead.stops_session)
        for postponed in record.postponed:
            self._postpone(postponed, version)

    def _consume(self, queue: Queue, sequences: list[int]) -> None:
        if queue.is_primary and isinstance(queue.order, PlainOrder):  # nothing but the task itself to forget
            pop = queue.tasks.pop
            self.message_bytes -= held_bytes_of([pop(sequence).message for sequence in sequences])
        else:
            for sequence in sequences:
                self.remove(queue, queue.tasks[sequence])

    def _emit(self, outputs: Sequence[Output], now_ms: int, version: int) -> None:
        """Put the outputs of a commit into their queues, in order.

        Those for one plain queue, to be seen at once, are put in as `_insert` would, written out.
        """
        destination, fresh = "", None
        taken: list[Message] = []
        for output in outputs:
            message = output.message
            if output.destination != destination:  # mostly a batch has one
                destination = output.destination
                queues = self.routes[destination]
                ruled = bool(self.rules) and any(queue.path in self.rules for queue in queues)
                fresh = queues[0].fresh if len(queues) == 1 and not ruled else None
                if fresh is not None:
                    plain = queues[0]
            if fresh is not None and not (output.due_ms or message.time_to_live_ms):
                self.sequence = sequence = self.sequence + 1
                plain.tasks[sequence] = Task(sequence, plain.path, message, now_ms, version, external=False)
                fresh.append(sequence)
                plain.received_count += 1
                taken.append(message)
                continue
            for queue in [q for q in queues if admits(self.rules, q.path, message)] if ruled else queues:
                if not (queue.settings.duplicate_window_s and queue.is_duplicate(message.broker_id, now_ms)):
                    # A scheduled message may be cancelled: a marker is to say which of the two was first.
                    digest = fingerprint(message.body, message.type) if output.due_ms else b""
                    self._insert(queue, message, now_ms, output.due_ms, version, digest)
        self.message_bytes += held_bytes_of(taken)

    def _postpone(self, postponed: records.Postponed, version: int) -> None:
        queue = self.queues[postponed.queue]
        task = queue.tasks[postponed.sequence]
        task.failures, task.due_ms, task.lock, task.version = postponed.failures, postponed.due_ms, 0, version
        task.external = True  # some of its handlers may have applied it: from here on markers say which
        task.description = postponed.error or task.description  # put back behind a block, it keeps what it failed of
        task.status = ACTIVE if isinstance(queue.order, SessionOrder) or not postponed.due_ms else SCHEDULED
        queue.index(task)
        queue.order.unlocked(task)

    def forget(self, now_ms: int) -> None:
        """Drop the markers and documents whose time is over."""
        self.documents.forget(now_ms)
        self.markers.forget(now_ms)

    # The general mutation

    def _modified(self, record: records.Modified, version: int) -> None:
        change, now_ms = record.modify, record.now_ms
        self.time_ms = max(self.time_ms, now_ms)
        for ref in change.deletes:
            self._consume(self.paths[ref.path], [ref.sequence])
        for item in change.changes:
            self._change_task(item, now_ms, version)
        first = self.sequence + 1
        for insert in change.inserts:
            if insert.restored is not None:
                self._restore(self.paths[insert.path], insert.message, insert.restored, version)
                continue
            digest = fingerprint(insert.message.body, insert.message.type)
            self._insert(self.paths[insert.path], insert.message, now_ms, insert.due_ms, version, digest)
        for doc in change.document_deletes:
            self.documents.drop(doc.namespace, doc.id)
        for write in change.documents:
            old = self.documents.spaces.get(write.namespace, {}).get(write.id)
            if old is not None and 0 < old.expires_ms <= now_ms:
                old = None  # whether it was forgotten already is no memory
            serial = old.serial + 1 if old else 1
            self.documents.put(
                write.namespace, write.id, StateDocument(write.value, version, write.schema, serial, write.expires_ms)
            )
        touched = change.documents or change.document_deletes
        if touched and touched[0].namespace == PAUSED_QUEUES:  # a pause, or its end, changes nothing else
            self._index_paused()
        if change.operation_id:
            self.operations[change.operation_id] = (version, list(range(first, self.sequence + 1)))
            while len(self.operations) > OPERATION_COUNT_MAX:
                del self.operations[next(iter(self.operations))]

    def _restore(self, dead: Queue, message: Message, letter: records.RestoredLetter, version: int) -> None:
        """Let a dead letter be where it was before it was discarded; it blocks no key again."""
        task = Task(letter.sequence, dead.path, message, letter.enqueued_ms, version, external=letter.external)
        task.failures, task.reason, task.description = letter.failures, letter.reason, letter.description
        task.remembered_until_ms = letter.remembered_until_ms
        self._put(dead, task)

    def _put(self, queue: Queue, task: Task) -> None:
        """Put a task into a queue under the sequence number that it had before."""
        if task.external:
            task.fingerprint = fingerprint(task.message.body, task.message.type)
        self.message_bytes += held_bytes(task.message)
        queue.tasks[task.sequence] = task
        queue.index(task)

    def _index_paused(self) -> None:
        """Say of each queue anew whether it is paused."""
        names = self.documents.spaces.get(PAUSED_QUEUES, {})
        for queue in self.queues:
            queue.paused = queue.path in names

    def _change_task(self, item: records.TaskChange, now_ms: int, version: int) -> None:
        """Let one task be as a modification says: elsewhere, later, or with another message."""
        queue = self.paths[item.path]
        task = queue.tasks.pop(item.sequence)
        queue.order.unlocked(task)
        target = self.paths[item.to_path] if item.to_path is not None else queue
        stays, stops = target is queue, task.stops_session
        if queue.letters is not None:
            queue.letters.drop(task)
        self._unblock(queue, task)
        if item.message is not None:
            self.message_bytes += held_bytes(item.message) - held_bytes(task.message)
            task.message = item.message
            task.fingerprint = fingerprint(item.message.body, item.message.type) if task.external else b""
        task.path, task.version, task.lock, task.due_ms = target.path, version, 0, item.due_ms
        task.status, task.set_aside = SCHEDULED if item.due_ms > now_ms else ACTIVE, msgspec.UNSET
        target.tasks[task.sequence] = task
        order = self.queues[queue.number - 1].order
        if stays and stops and isinstance(order, SessionOrder):  # still there, maybe rewritten under another key
            task.stops_session = True
            order.block(order.session(task.message.session_id), task.sequence)
        target.index(task)

    def rebuild(self) -> None:
        """Make every index anew, after a replay or a snapshot."""
        for queue in self.queues:
            if isinstance(queue.order, SessionOrder):
                for task in self.queues[queue.number + 1].tasks.values():
                    if task.stops_session:
                        queue.order.session(task.message.session_id).blocked_by.add(task.sequence)
            queue.rebuild()
        self._index_paused()
