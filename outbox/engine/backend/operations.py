"""The operations of clients and operators on an embedded engine.  Whatever they are answered has passed the gate."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from outbox.engine.backend.apart import EngineBus, EngineStore
from outbox.engine.broker import Broker
from outbox.engine.core import Core
from outbox.engine.dead_letters import DeadLetters
from outbox.engine.documents import Documents
from outbox.engine.entities import QueueSettings, TopicSettings, dead_letter_path
from outbox.engine.state.documents import STATES
from outbox.engine.topology import Topology
from outbox.message import Message
from outbox.ports import (
    Create,
    DeadLetterEntry,
    Document,
    DocumentKey,
    First,
    Operations,
    Output,
    Replace,
    StateDocument,
    Tag,
    Version,
    Won,
)
from outbox.resubmission import identified

PEEK_COUNT_MAX = 100_000


class EngineOperations:
    """The operations of clients and operators on an embedded engine."""

    def __init__(
        self, core: Core, broker: Broker, topology: Topology, documents: Documents, dead_letters: DeadLetters
    ) -> None:
        self._core = core
        self._broker = broker
        self._topology = topology
        self._documents = documents
        self._dead_letters = dead_letters
        self._store = EngineStore(core, documents)
        self.now_ms = core.now_ms

    async def send(self, outputs: Sequence[Output]) -> None:
        await EngineBus(self._core, self._broker).send(outputs)

    async def declare(
        self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]], *, stop_keys: Collection[str] = ()
    ) -> None:
        known = self._topology.queues
        wanted = [
            QueueSettings(name, "per_key" if o == "per_key" else "unordered", stop_key=name in stop_keys)
            for name, o in queues.items()
        ]
        fresh = [q for q in wanted if q.name not in known or known[q.name].ordering != q.ordering]
        fresh += [  # what else was set for it stays
            msgspec.structs.replace(known[name], stop_key=True)
            for name in stop_keys
            if name in known and not known[name].stop_key and known[name].ordering == queues.get(name)
        ]
        self._topology.declare(*fresh, *(TopicSettings(name, tuple(subs)) for name, subs in topics.items()))
        await self._core.gate()

    async def state(self, id: str) -> StateDocument | None:
        found = self._documents.read(STATES, id)
        await self._core.gate()
        return found if found is not None and found.value else None

    async def dead_letters(self, queue: str) -> list[DeadLetterEntry]:
        found = dead_letters(self._broker, queue)
        await self._core.gate()
        return found

    async def resubmit(
        self, queue: str, sequence: int, *, attempt: int = 0, edit: Message | None = None, first: First | None = None
    ) -> None:
        if first is not None:
            self._dead_letters.find(queue, sequence)
            await first()
        self._dead_letters.resubmit(queue, sequence, attempt=attempt, edit=edit)
        await self._core.gate()

    async def discard(self, queue: str, sequence: int, *, first: First | None = None) -> None:
        if first is not None:
            self._dead_letters.find(queue, sequence)
            await first()
        self._dead_letters.discard(queue, sequence)
        await self._core.gate()

    async def unblock(self, queue: str, session_id: str, identity: str) -> bool:
        return False  # a session is blocked by what is among the dead letters, and by nothing else

    async def is_idle(self, queues: Sequence[str]) -> bool:
        return self._broker.is_idle(queues)

    async def is_drained(self, queues: Sequence[str]) -> bool:
        return self._broker.is_drained(queues)

    async def note(self, name: str) -> Document | None:
        return await self._store.read(DocumentKey("notes", name))

    async def write_note(self, name: str, body: bytes, version: Version) -> bool:
        key, tag = DocumentKey("notes", name), Tag("note")
        write = Replace(key, body, version, tag=tag) if version else Create(key, body, tag=tag)
        return isinstance(await self._store.write([write]), Won)


def dead_letters(broker: Broker, queue: str) -> list[DeadLetterEntry]:
    """The dead letters of a queue, oldest first; the caller passes the gate."""
    return [
        identified(
            DeadLetterEntry(
                queue,
                task.sequence,
                task.message,
                task.reason,
                task.description,
                task.failures + task.delivery_count + task.message.failures,
                task.enqueued_ms,
            )
        )
        for task in broker.peek(dead_letter_path(queue), 0, PEEK_COUNT_MAX)
    ]


_conforms: type[Operations] = EngineOperations
