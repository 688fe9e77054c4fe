"""The arguments of a management request: a map from a peer, read with types and limits."""

from __future__ import annotations

from uuid import UUID

from outbox.emulator.amqp.errors import ARGUMENT_ERROR, OperationFault


class Arguments:
    """Typed access to a request's map.  Every method raises OperationFault for what is missing or of another type."""

    def __init__(self, values: dict[object, object]) -> None:
        self._values = values

    def text(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str):
            raise OperationFault(ARGUMENT_ERROR, f"{name} must be a string")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self._values.get(name) is None else self.text(name)

    def integer(self, name: str, default: int) -> int:
        value = self._values.get(name, default)
        if type(value) is not int:
            raise OperationFault(ARGUMENT_ERROR, f"{name} must be a number")
        return value

    def count(self, name: str, default: int, highest: int) -> int:
        """A number from 0 on; what is above `highest` is cut to it."""
        value = self.integer(name, default)
        if value < 0:
            raise OperationFault(ARGUMENT_ERROR, f"{name} must not be negative")
        return min(value, highest)

    def binary(self, name: str) -> bytes:
        value = self._values.get(name)
        if not isinstance(value, bytes):
            raise OperationFault(ARGUMENT_ERROR, f"{name} must be binary")
        return value

    def binary_or_none(self, name: str) -> bytes | None:
        return None if self._values.get(name) is None else self.binary(name)

    def integers(self, name: str, count_max: int) -> list[int]:
        items = self._items(name, count_max)
        numbers = [item for item in items if type(item) is int]
        if len(numbers) != len(items):
            raise OperationFault(ARGUMENT_ERROR, f"{name} must hold numbers only")
        return numbers

    def uuids(self, name: str, count_max: int) -> list[UUID]:
        items = self._items(name, count_max)
        found = [item for item in items if isinstance(item, UUID)]
        if len(found) != len(items):
            raise OperationFault(ARGUMENT_ERROR, f"{name} must hold uuids only")
        return found

    def maps(self, name: str, count_max: int) -> list[dict[object, object]]:
        items = self._items(name, count_max)
        found = [item for item in items if isinstance(item, dict)]
        if len(found) != len(items):
            raise OperationFault(ARGUMENT_ERROR, f"{name} must hold maps only")
        return found

    def _items(self, name: str, count_max: int) -> list[object]:
        value = self._values.get(name)
        if not isinstance(value, list) or len(value) > count_max:
            raise OperationFault(ARGUMENT_ERROR, f"{name} must be a list of {count_max} items at most")
        return value
