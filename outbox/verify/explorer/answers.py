"""What may become of a call: what its model says, and what may happen to any call on its way there and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from outbox.verify.explorer.ops import NO_LOCKS, FaultKind, Locks, Model, Table
from outbox.verify.explorer.trie import Trie
from outbox.verify.explorer.world import THROTTLED, UNKNOWN, Answer, Monitor

Flight = tuple[int, ...]
"""Calls that are still on their way, by number."""


class Answers:
    """The answers to calls, worked out once for each state of their resource."""

    def __init__(
        self,
        models: Sequence[Model],
        states: Sequence[Table[Any]],
        times: Table[int],
        trie: Trie,
        monitor: Monitor,
        kinds: Set[FaultKind],
        event: Callable[..., int],
    ) -> None:
        self._models = models
        self._states = states
        self._times = times
        self._trie = trie
        self._monitor = monitor
        self._kinds = kinds
        self._event = event
        self._known: dict[tuple[int, int, int, Locks], list[Answer]] = {}

    def plain(self, number: int, state: int, time: int, in_use: Locks = NO_LOCKS) -> list[Answer]:
        """What its model makes of a call, and what that means."""
        key = (number, state, time, in_use)
        found = self._known.get(key)
        if found is None:
            op = self._trie.ops[number]
            before, now_ms, table = self._states[op.resource][state], self._times[time], self._states[op.resource]
            found = []
            for outcome in self._models[op.resource].outcomes(before, op, now_ms, in_use):
                if outcome.fault is not None and outcome.fault not in self._kinds:
                    continue
                meaning = self._monitor.observe(op, before, outcome, now_ms)
                found.append(
                    Answer(
                        outcome.label,
                        table.number(outcome.state, outcome.state),
                        self._trie.result(outcome.result),
                        outcome.fault,
                        self._event(meaning) if meaning is not None else 0,
                    )
                )
            self._known[key] = found
        return found

    def to(self, number: int, state: int, time: int, in_use: Locks) -> list[tuple[Answer, Flight]]:
        """All answers to a call, faults included, and whether it is still on its way after each."""
        plain = self.plain(number, state, time, in_use)
        found: list[tuple[Answer, Flight]] = [(answer, ()) for answer in plain]
        if not plain:
            return found
        op = self._trie.ops[number]
        reach = self._models[op.resource].reach(op.verb)
        unknown = self._trie.result(UNKNOWN)
        if reach != "read" and "lost" in self._kinds:
            for answer in plain:
                if not answer.fault:
                    label = f"{answer.label} (the reply is lost)".strip()
                    found.append((Answer(label, answer.state, unknown, "lost", answer.event), ()))
        if reach == "write" and "delay" in self._kinds:
            found.append((Answer("no reply, it is still on its way", state, unknown, "delay", 0), (number,)))
        if reach != "take" and "error" in self._kinds:
            found.append((Answer("-> throttled", state, self._trie.result(THROTTLED), "error", 0), ()))
        return found
