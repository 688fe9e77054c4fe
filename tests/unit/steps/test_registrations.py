"""What workers register in a backend: retentions and handlers, and what others read of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec
import pytest

from outbox import App, Engine
from outbox.errors import NotRegistrable, OutcomeUnknown, UnknownDestination
from outbox.ports import Document, DocumentKey, Operations
from outbox.runtime.start import notes
from outbox.runtime.start.notes import (
    HandlerName,
    RetentionWindow,
    TypeName,
    register_handlers,
    register_retention,
    types_of,
)
from outbox.testing import START_S, VirtualClock

HOUR_MS = 3_600_000


@dataclass
class Deposit:
    account: str


def depositing(name: str, *, version: int = 1) -> App:
    app = App("bank")
    app.message("deposit", version=version, upcasts={n: lambda old: old for n in range(1, version)})(Deposit)

    @app.handler("deposits", name=name)
    def note(message: Deposit) -> None: ...

    return app


async def documents(*notes: Document | None) -> AsyncIterator[Document]:
    for note in notes:
        if note is not None:
            yield note


async def registered(operations: Operations, hours: int) -> RetentionWindow:
    window = RetentionWindow(hours * HOUR_MS, (hours + 1) * HOUR_MS)
    await register_retention("bank", window, operations)
    return window


async def test_so_many_earlier_retentions_matter_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes, "ERA_COUNT_MAX", 2)
    operations = Engine.in_memory(clock=VirtualClock(START_S)).ports().operations
    for hours in (1, 2, 3):
        window = await registered(operations, hours)
    assert [era.retention_ms // HOUR_MS for era in window.eras] == [1, 2]
    with pytest.raises(NotRegistrable, match="go back to one of them"):
        await registered(operations, 4)
    await registered(operations, 1)


async def test_a_worker_with_an_older_schema_does_not_lower_what_senders_may_send() -> None:
    operations = Engine.in_memory().ports().operations
    for version in (1, 3, 2):
        await register_handlers(depositing("note", version=version), operations)
    note = await operations.note("handlers:bank")
    assert await types_of("deposits", documents(note)) == {"deposit": 3}


async def test_the_types_of_a_topic_are_those_of_its_subscriptions() -> None:
    handlers = [
        HandlerName(source, "h", "", types=(TypeName(name, 1),))
        for source, name in (("news/Subscriptions/a", "one"), ("news/Subscriptions/b", "two"), ("newspaper", "three"))
    ]
    note = Document(DocumentKey("notes", "handlers:bank"), msgspec.json.encode(handlers), "1")
    assert await types_of("news", documents(note)) == {"one": 1, "two": 1}


async def test_a_handler_may_have_another_name_when_its_source_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = Engine.in_memory().ports().operations
    await register_handlers(depositing("old"), operations)

    async def is_drained(queues: Sequence[str]) -> bool:
        raise UnknownDestination(f"{queues} is not there")

    with monkeypatch.context() as gone:
        gone.setattr(operations, "is_drained", is_drained)
        await register_handlers(depositing("new"), operations)


async def test_a_registration_whose_outcome_is_unknown_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = Engine.in_memory(clock=VirtualClock(START_S)).ports().operations
    write, writes = operations.write_note, list[str]()

    async def unanswered(name: str, body: bytes, version: str) -> bool:
        writes.append(name)
        await write(name, body, version)
        raise OutcomeUnknown("no answer")

    monkeypatch.setattr(operations, "write_note", unanswered)
    await registered(operations, 1)
    await register_handlers(depositing("note"), operations)
    assert writes == ["retention:bank", "handlers:bank"]
