"""Changes of a state, taken back where a reduce refuses its record.

Of a state's fields the values are kept from before a call; those that can be changed in place are copied, which costs
as much as they are large.  A box notes how to take back each change of it, so a large one costs no more than a small
one.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import msgspec
import msgspec.inspect as shapes

from outbox.streams.pipeline.state_fields import fields_of, is_frozen


class Undo:
    """The changes that a call makes of its state; all states are of one class."""

    def __init__(self, kind: type[Any], names: Iterable[str]) -> None:
        fields, hints = fields_of(kind), typing.get_type_hints(kind)
        self._boxes = {} if fields is None else fields.boxes
        self._copied = {
            name: name not in self._boxes and not is_frozen(shapes.type_info(hints[name])) for name in names
        }
        self._set = msgspec.structs.force_setattr if issubclass(kind, msgspec.Struct) else object.__setattr__
        self._state: Any = None
        self._values: dict[str, Any] = {}
        self._changes: list[Callable[[], object]] = []

    def begin(self, state: Any) -> None:
        """Begin a call that changes a state; None: it makes a new one."""
        self._state, self._changes = state, []
        if state is None:
            return
        self._values = {
            name: deepcopy(getattr(state, name)) if copied else getattr(state, name)
            for name, copied in self._copied.items()
        }
        for name, kept in self._boxes.items():
            marks = self._values[name]._marks
            marks.undo, marks.reads = self._changes, kept.reads

    def undo(self) -> bool:
        """Take back what the call has changed; False: there was no state before."""
        if self._state is None:
            return False
        for name, value in self._values.items():
            self._set(self._state, name, value)
        for change in reversed(self._changes):
            change()
        return True
