"""A worker: a process that has the states of some slots, and runs operators for the runner that started it.

It has no ports: what it is sent comes from the runner, and what it makes goes there.  It does one thing after the
other, so an answer says that all before it is done; it ends when its socket does.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from select import select
from typing import Any, cast

import msgspec

from outbox.errors import NotRegistrable
from outbox.lineage import Key
from outbox.ports import NoBlobs, StateStore
from outbox.streams.cells import Position
from outbox.streams.log_places import Place
from outbox.streams.pipeline.checkpoint import Section
from outbox.streams.pipeline.core import Reduce
from outbox.streams.pipeline.cores import ENTRIES, core_of, lead_on, states_of
from outbox.streams.pipeline.exchange import (
    SINK,
    Answer,
    Begin,
    Exchange,
    Failed,
    FromWorker,
    Load,
    Look,
    Moved,
    Save,
    ToWorker,
    Unframed,
    framed,
    identity_of,
)
from outbox.streams.pipeline.graph import Pipeline
from outbox.streams.pipeline.grouping import Buffered, Speculative
from outbox.streams.pipeline.operators import Frame
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.release import SPECULATIVE
from outbox.streams.pipeline.states import key_of, slot_of, text_of
from outbox.streams.pipeline.tasks import OBJECTS_A_PART, OBJECTS_A_RECORD, STATES_AT_ONCE, Frozen, sections_saved

READ_BYTES = 1 << 18


class TaskWorker:
    """A worker's work on messages, without its socket."""

    def __init__(self, plan: PipelinePlan) -> None:
        self._plan = plan
        self.saving: Save | None = None
        """A request to save that is not answered yet."""
        self._frozen = Frozen()

    def handle(self, message: ToWorker) -> Iterator[FromWorker]:
        """Do what a message asks for."""
        match message:
            case Begin():
                yield self._begin(message)
            case Load():
                section = msgspec.json.decode(message.section, type=Section)
                self._states[section.operator].load(section.states, section.schema, section.changes)
                yield Answer(message.id, self._at)
            case Save():
                self.saving, self._begun = message, set[str]()
                self._begin_to_save()
            case Look():
                yield self._look(message)
            case Moved():
                self._frozen.take()
                yield from self._take(message.to, message.worker, self._exchange.frame(message))

    def _begin(self, message: Begin) -> Answer:
        self._frozen.end()
        plan, self._at, self.saving = self._plan, message.at, None
        self._worker, self._exchange = message.worker, Exchange(plan, message.count)
        self._cores = {operator.name: core_of(plan.name, operator) for operator in plan.operators}
        self._states = {name: states for name, core in self._cores.items() if (states := states_of(core)) is not None}
        self._groups: dict[str, Buffered | Speculative] = {ENTRIES: Buffered(1, message.at)}
        self._groups |= {name: self._group(name, message) for name in self._states}
        self._slots: dict[str, dict[int, list[Key]]] = {}
        return Answer(message.id, message.at, [identity_of(plan)])

    def _group(self, name: str, message: Begin) -> Buffered | Speculative:
        core, channels = self._cores[name], self._exchange.channels(name)
        if message.grouping == SPECULATIVE and channels > 1 and isinstance(core, Reduce):
            return Speculative(channels, message.at, core)
        return Buffered(channels, message.at, core.feed)

    def _take(self, to: str, channel: int, frame: Frame) -> Iterator[Moved]:
        """Run operators on complete records, up to the next exchange; this worker's own shares are taken at once."""
        ready = self._groups[to].feed(channel, frame)
        if ready is None:
            return
        made = lead_on(self._plan, self._cores, to, ready)
        Frozen.note(OBJECTS_A_RECORD * sum(len(each.records) for each in made.values()))
        made.pop(ENTRIES, None)
        if self._exchange.refused:
            number = self._exchange.stages.index(to)
            yield self._exchange.moved(self._exchange.refused, number, self._exchange.aside(made, ready.watermark))
        self._begin_to_save()
        for to, worker, share in self._exchange.shares(made):
            if worker == self._worker and not to.startswith(SINK):
                yield from self._take(to, worker, share)
            else:
                yield self._exchange.moved(to, worker, share)

    def _begin_to_save(self) -> None:
        save = self.saving
        if save is not None:
            for name, states in self._states.items():
                if name not in self._begun and self._groups[name].watermark >= save.at:
                    self._begun.add(name)
                    states.begin(save.since, save.at)

    @property
    def has_to_save(self) -> bool:
        """Whether there is something to save now."""
        return self.saving is not None and len(self._begun) == len(self._states)

    def save(self) -> Iterator[Answer]:
        """Save some more states; the last call answers with all sections."""
        assert self.saving is not None
        Frozen.note(OBJECTS_A_PART)
        if all(states.save(STATES_AT_ONCE) for states in self._states.values()):
            sections = sections_saved(self._states)
            yield Answer(self.saving.id, self.saving.at, [msgspec.json.encode(each) for each in sections.values()])
            self.saving = None

    def _look(self, message: Look) -> Answer:
        if not message.operator:
            return Answer(message.id, Position(0))
        states, keys = self._states[message.operator], [key_of(message.key)] if message.key else []
        if not message.key:
            if message.slot == self._worker:  # the first of its slots
                slots = self._slots[message.operator] = {}
                for key in states.all():
                    slots.setdefault(slot_of(key), []).append(key)
            keys = self._slots[message.operator].get(message.slot, keys)
        found = [(key, state) for key in keys if (state := states.state(key)) is not None]
        parts = [part for key, state in found for part in (text_of(key).encode(), states.encode(state))]
        return Answer(message.id, self._groups[message.operator].watermark, parts)


def plan_of(name: str) -> PipelinePlan:
    """The plan of `module:attribute`: a pipeline, or what makes one of a place, by itself or as its `pipeline`.

    Raises:
        NotRegistrable: there is none.
    """
    module, _, attribute = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ModuleNotFoundError, AttributeError) as error:
        raise NotRegistrable(
            f"imported={name!r}: {error}; give module:attribute, a pipeline at the top of a module or what makes one"
        ) from error
    if not isinstance(found, Pipeline) and callable(found):
        found = found(Place(cast(StateStore, object()), NoBlobs()))  # nothing is stored here
    found = getattr(found, "pipeline", found)
    if not isinstance(found, Pipeline):
        raise NotRegistrable(f"{name} is of type {type(found).__name__}, and neither a Pipeline nor what makes one")
    return found.plan()


def serve(worker: TaskWorker, there: socket.socket) -> None:
    """Do what comes through a socket, until it ends."""
    unframed = Unframed[ToWorker](ToWorker)
    while True:
        if not worker.has_to_save or select([there], [], [], 0)[0]:
            data = there.recv(READ_BYTES)
            if not data:
                return
            for message in unframed.feed(data):
                there.sendall(b"".join(map(framed, worker.handle(message))))
        if worker.has_to_save:
            there.sendall(b"".join(map(framed, worker.save())))


def failure_of(error: Exception) -> Failed:
    """The message about an error."""
    return Failed(type(error).__name__, str(error), getattr(error, "position", None))


def main() -> None:
    """Be the worker at the end of a socket of this number, for the pipeline of this name."""
    for each in (signal.SIGINT, signal.SIGTERM):  # the runner ends it, behind its last checkpoint
        signal.signal(each, signal.SIG_IGN)
    number, name = sys.argv[2:]
    with socket.socket(fileno=int(number)) as there, suppress(BrokenPipeError, ConnectionResetError):
        try:
            serve(TaskWorker(plan_of(name)), there)
        except Exception as error:
            there.sendall(framed(failure_of(error)))
