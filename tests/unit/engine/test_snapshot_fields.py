"""Nothing that a snapshot holds can be taken out of it unseen, and nothing in memory is left out of the comparison.

Both go over the fields that the classes have, so that a new one is under test before anybody thinks of it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from outbox.engine.entities import QueueSettings, TopicSettings
from outbox.engine.log import snapshot
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.snapshot import Image, QueueImage
from outbox.engine.state.documents import DocumentSpaces
from outbox.engine.state.markers import Markers
from outbox.engine.state.plain_order import PlainOrder
from outbox.engine.state.queues import Letters, Queue
from outbox.engine.state.rules import Rule
from outbox.engine.state.session_order import Session, SessionOrder
from outbox.engine.state.state import State
from outbox.engine.state.tasks import Task
from outbox.errors import OutboxError
from outbox.message import Message
from outbox.ports import Refusal, StateDocument
from outbox.testing import START_S, VirtualClock
from tests.unit.engine.drawn_engine import Actor, declared, recorded
from tests.unit.engine.remembered import LEFT_OUT, differences, fields_of, remembered, settle

SEEDS = range(8)
STEP_COUNT = 160
KINDS: tuple[type[msgspec.Struct], ...] = (
    Image, QueueImage, QueueSettings, TopicSettings, Rule, Task, Message, StateDocument, Refusal
)  # fmt: skip
SECTIONS = [(kind, field) for kind in KINDS for field in kind.__struct_fields__]
NO_MEMORY = {
    (Image, "format"): "says how the rest is read",
    (Task, "locked_until_ms"): "an open lets every lock go",
}
IN_MEMORY: dict[type[Any], object] = {
    State: State(),
    DocumentSpaces: DocumentSpaces(),
    Markers: Markers(),
    Queue: Queue(0, "q", QueueSettings("q")),
    PlainOrder: PlainOrder({}),
    Letters: Letters({}),
    SessionOrder: SessionOrder({}),
    Session: Session("s"),
    Task: Task(1, "q", Message(body=b""), 1, 1),
}


class Drawn:
    """Engines that did much, with what their snapshots hold."""

    def __init__(self, engines: list[tuple[State, int]]) -> None:
        self.engines = engines
        self.images = [snapshot._decoder.decode(snapshot.encode(state, 7)[32:]) for state, _ in engines]


async def worked(seed: int) -> tuple[State, int]:
    """The state of an engine that did much, and its time."""
    clock = VirtualClock(START_S)
    engine = recorded([]).open(MemoryDisk("fields"), clock=clock, log_id=b"0" * 16)
    declared(engine)
    actor = Actor(engine, clock, random.Random(seed))
    for _ in range(STEP_COUNT):
        await actor.act()
    return engine.state, engine.now_ms()


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    return Drawn([asyncio.run(worked(seed)) for seed in SEEDS])


def emptied(value: Any) -> Any:
    """What a snapshot that forgets a field would give in its place."""
    match value:
        case bool():
            return not value
        case "unordered" | "per_key":
            return "unordered"
        case "true" | "false" | "correlation":
            return "true"
        case Message():
            return Message(body=b"")
        case QueueSettings():
            return QueueSettings(value.name)
        case None:
            return None
    return type(value)()


def without(value: Any, kind: type[msgspec.Struct], field: str) -> Any:
    """A copy of an image in which every object of a kind has lost one field."""
    if isinstance(value, msgspec.Struct):
        changed = {
            name: without(getattr(value, name), kind, field)
            if (type(value), name) != (kind, field)
            else emptied(getattr(value, name))
            for name in value.__struct_fields__
        }
        return type(value)(**changed)
    if isinstance(value, dict):
        return {key: without(entry, kind, field) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without(entry, kind, field) for entry in value)
    return value


def restored(image: Image) -> tuple[State, int]:
    body = snapshot._encoder.encode(image)
    return snapshot.decode(sha256(body).digest() + body)


def told(drawn: Drawn, kind: type[msgspec.Struct], field: str) -> Iterator[str]:
    """What shows that a field is missing, engine by engine."""
    for (state, now_ms), image in zip(drawn.engines, drawn.images, strict=True):
        try:
            copy, ordinal = restored(without(image, kind, field))
        except (OutboxError, LookupError, ValueError) as error:
            yield repr(error)
            continue
        yield from differences(copy, state, now_ms)
        if ordinal != 7:
            yield "the ordinal is another"


def test_a_snapshot_with_everything_differs_in_nothing(drawn: Drawn) -> None:
    for (state, now_ms), image in zip(drawn.engines, drawn.images, strict=True):
        assert differences(restored(image)[0], state, now_ms) == []


@pytest.mark.parametrize(("kind", "field"), SECTIONS, ids=[f"{kind.__name__}.{field}" for kind, field in SECTIONS])
def test_a_snapshot_that_forgets_a_field_is_found(drawn: Drawn, kind: type[msgspec.Struct], field: str) -> None:
    assert ((kind, field) in NO_MEMORY) != any(told(drawn, kind, field))


IN_STATES = [(kind, field) for kind, example in IN_MEMORY.items() for field in fields_of(example)]


@pytest.mark.parametrize(("kind", "field"), IN_STATES, ids=[f"{kind.__name__}.{field}" for kind, field in IN_STATES])
def test_the_comparison_covers_every_field_of_the_state(drawn: Drawn, kind: type[Any], field: str) -> None:
    assert any(
        changed(image, now_ms, kind, field) for (_, now_ms), image in zip(drawn.engines, drawn.images, strict=True)
    )


def changed(image: Image, now_ms: int, kind: type[Any], field: str) -> bool:
    """Whether another value of a field shows, or is left out by name."""
    if any(issubclass(kind, left) and name == field for left, name in LEFT_OUT):
        return True
    state, _ = restored(image)
    settle(state, now_ms)
    found = next((held for held in objects(state) if type(held) is kind), None)
    if found is None:
        return False
    before = remembered(state)
    setattr(found, field, other(getattr(found, field)))
    return remembered(state) != before


def objects(state: State) -> Iterator[object]:
    yield from (state, state.documents, state.markers)
    for queue in state.queues:
        yield queue
        yield from queue.tasks.values()
        yield queue.order
        if queue.letters is not None:
            yield queue.letters
        if isinstance(queue.order, SessionOrder):
            yield from queue.order.sessions.values()


def other(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "x"
        case Message():
            return msgspec.structs.replace(value, body=value.body + b"x")
        case QueueSettings():
            return msgspec.structs.replace(value, lock_s=value.lock_s + 1)
        case DocumentSpaces():
            return Markers()
        case Markers():
            return DocumentSpaces()
        case PlainOrder():
            return SessionOrder({})
        case SessionOrder():
            return PlainOrder({})
        case None:
            return Letters({})
        case msgspec.UNSET:
            return True
        case bytes():
            return value + b"x"
    empty: dict[type[Any], Any] = {dict: {"x": 1}, list: [1], set: {1}, deque: deque([1])}
    return type(value)() if value else empty[type(value)]


def test_a_field_of_an_unknown_type_is_not_passed_over() -> None:
    state = State()
    state.fresh_idea = object()  # type: ignore[attr-defined]  # what somebody may add
    with pytest.raises(TypeError, match="fresh_idea"):
        remembered(state)
