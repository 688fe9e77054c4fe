"""Fields of a reduce's state of which only what changed goes into a checkpoint.

    @dataclass
    class Postings:
        pages: MapState[int, list[int]] = field(default_factory=MapState)

Theory of operation: a checkpoint is made of what changed at or behind the position of the one that stands.  A box
notes which of its members were changed, without a position, because it knows none; when the state is saved, before
the next record of its key, these are kept with the position of the checkpoint, below which they changed.  So what a
lost or given up checkpoint has saved is saved again until one stands that is not before it.  What is saved is absolute.

A box that was not saved in this field, such as a new one, is saved as a whole.  Where values can be changed in place, a
value that was read counts as changed.  A map goes by the order of its keys: the order in which they came would not
survive a restart, and operators that iterate would differ.

Before each call that may refuse its record a box gets a list: how to take back each of its changes since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from copy import deepcopy
from functools import partial
from typing import Any, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


WHOLE = object()
"""In place of a changed member: all of a box."""


class Marks:
    """The members of a box that changed since it was last saved."""

    __slots__ = ("field", "fresh", "reads", "undo")

    def __init__(self) -> None:
        self.field = ""
        """The field that it was saved in; none yet."""
        self.reads = False
        """Whether a read member counts as changed."""
        self.fresh: dict[Any, None] = {}
        self.undo: list[Callable[[], object]] | None = None
        """Calls that take changes back; None where nobody asks for them."""

    def stands(self, field: str, *, reads: bool) -> None:
        """Say that all of it is saved."""
        self.field, self.reads = field, reads

    def taken(self, field: str) -> Mapping[Any, None]:
        """The members that changed since this was last called; `WHOLE` is all."""
        fresh, self.fresh = self.fresh, {}
        if self.field != field:
            self.field, fresh = field, {WHOLE: None}
        return fresh


class Value(Generic[T]):
    """A field that is saved where it was changed: `state.total.value += 1`."""

    __slots__ = ("_inner", "_marks")

    def __init__(self, value: T) -> None:
        self._inner = value
        self._marks = Marks()

    @property
    def value(self) -> T:
        """The value."""
        if self._marks.reads:
            self._marks.fresh[None] = None
            if self._marks.undo is not None:
                self._marks.undo.append(partial(setattr, self, "_inner", deepcopy(self._inner)))
        return self._inner

    @value.setter
    def value(self, value: T) -> None:
        if self._marks.undo is not None:
            self._marks.undo.append(partial(setattr, self, "_inner", self._inner))
        self._inner = value
        self._marks.fresh[None] = None

    def __eq__(self, other: object) -> bool:
        return self._inner == other._inner if isinstance(other, Value) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Value({self._inner!r})"


class MapState(MutableMapping[K, V]):
    """A dictionary of which members are saved that were changed; it goes by the order of its keys.

    Keys are all `str`, all `int` or all `UUID`, as its annotation says.
    """

    __slots__ = ("_inner", "_marks")

    def __init__(self, members: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._inner: dict[K, V] = dict(members)
        self._marks = Marks()

    def __getitem__(self, key: K) -> V:
        found = self._inner[key]
        if self._marks.reads:
            self._marks.fresh[key] = None
            if self._marks.undo is not None:
                self._marks.undo.append(partial(self._inner.__setitem__, key, deepcopy(found)))
        return found

    @overload
    def get(self, key: K, default: None = None, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V | T, /) -> V | T: ...
    def get(self, key: K, default: Any = None, /) -> Any:
        """The value of a key, or the default."""
        if self._marks.reads:
            return self[key] if key in self._inner else default
        return self._inner.get(key, default)

    def __setitem__(self, key: K, value: V) -> None:
        if self._marks.undo is not None:
            self._keep(self._marks.undo, key)
        self._inner[key] = value
        self._marks.fresh[key] = None

    def __delitem__(self, key: K) -> None:
        if self._marks.undo is not None:
            self._keep(self._marks.undo, key)
        del self._inner[key]
        self._marks.fresh[key] = None

    def _keep(self, undo: list[Callable[[], object]], key: K) -> None:
        inner = self._inner
        undo.append(partial(inner.__setitem__, key, inner[key]) if key in inner else partial(inner.pop, key, None))

    def __iter__(self) -> Iterator[K]:
        return iter(sorted(self._inner))  # type: ignore[type-var]  # keys are of one type, which has an order

    def __len__(self) -> int:
        return len(self._inner)

    def __contains__(self, key: object) -> bool:
        return key in self._inner

    def __eq__(self, other: object) -> bool:
        return self._inner == (other._inner if isinstance(other, MapState) else other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"MapState({ ({key: self._inner[key] for key in self})!r})"


class ListState(MutableSequence[T]):
    """A list of which the indexes are saved that were changed; a change that moves others changes these as well."""

    __slots__ = ("_inner", "_marks")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._inner = list(items)
        self._marks = Marks()

    def _mark(self, begin: int, end: int) -> None:
        self._marks.fresh.update(dict.fromkeys(range(begin, end)))

    def _keep(self, begin: int) -> None:
        if self._marks.undo is not None:
            kept = self._inner[begin:]
            kept = deepcopy(kept) if self._marks.reads else kept  # what moves may be changed at its new place
            self._marks.undo.append(partial(self._inner.__setitem__, slice(begin, None), kept))

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if self._marks.reads:
            read = range(len(self._inner))[index]
            self._marks.fresh.update(dict.fromkeys(read if isinstance(read, range) else (read,)))
            if self._marks.undo is not None:
                self._marks.undo.append(partial(self._inner.__setitem__, index, deepcopy(self._inner[index])))
        return self._inner[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        count = len(self._inner)
        self._keep(0 if isinstance(index, slice) else range(count)[index])
        self._inner[index] = value
        if isinstance(index, slice):
            self._mark(0, max(count, len(self._inner)))
        else:
            self._marks.fresh[range(count)[index]] = None

    def __delitem__(self, index: int | slice) -> None:
        count = len(self._inner)
        self._keep(0 if isinstance(index, slice) else range(count)[index])
        del self._inner[index]
        self._mark(0 if isinstance(index, slice) else range(count)[index], count)

    def insert(self, index: int, value: T) -> None:
        """Put a value before an index."""
        count = len(self._inner)
        begin = slice(index, None).indices(count)[0]
        self._keep(begin)
        self._inner.insert(index, value)
        self._mark(begin, count + 1)

    def append(self, value: T) -> None:
        """Put a value behind the last."""
        self._keep(len(self._inner))
        self._marks.fresh[len(self._inner)] = None
        self._inner.append(value)

    def __len__(self) -> int:
        return len(self._inner)

    def __eq__(self, other: object) -> bool:
        return self._inner == (other._inner if isinstance(other, ListState) else other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"ListState({self._inner!r})"
