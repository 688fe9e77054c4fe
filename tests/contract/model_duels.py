"""The models, checked against what they are models of: the same operations, drawn by a seed, on both.

What a port answers has to be one of the outcomes that its model has, except that versions, locks and sequences may be
called otherwise; how they are called is learned as they appear, and must stay the same.  `check_store_model` and
`check_queue_models` run on any adapter; a difference raises `AssertionError` with the seed and the operation.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from outbox.errors import OutboxError
from outbox.ports import (
    BlobStore,
    Create,
    Delete,
    Document,
    DocumentKey,
    Lost,
    Replace,
    StateStore,
    Version,
    Won,
    Write,
)
from outbox.verify.explorer.models.store import BlobModel, StoreModel
from outbox.verify.explorer.ops import Op, Raised

Wait = Callable[[float], Awaitable[None]]
"""Lets so many seconds pass."""

STEP_COUNT = 60
PARTITION_COUNT, ID_COUNT = 2, 3


class Names:
    """What is called one way here and another there; a name that is learned stays."""

    def __init__(self, told: str) -> None:
        self._told = told
        self._theirs: dict[Hashable, Hashable] = {}
        self._ours: dict[Hashable, Hashable] = {}

    def learn(self, theirs: Hashable, ours: Hashable) -> None:
        """Know that the two are one, if that can be.

        Raises:
            AssertionError: one of them is known as another.
        """
        known, back = self._theirs.setdefault(theirs, ours), self._ours.setdefault(ours, theirs)
        if known != ours or back != theirs:
            raise AssertionError(f"{self._told}: {theirs} is {known} to the model, now {ours} (which was {back})")

    def fits(self, theirs: Hashable, ours: Hashable) -> bool:
        """Whether the two can be one."""
        return self._theirs.get(theirs, ours) == ours and self._ours.get(ours, theirs) == theirs

    def ours(self, theirs: Hashable) -> Any:
        """What the model calls it."""
        return self._theirs.get(theirs, theirs)


async def answer(call: Awaitable[Any]) -> Any:
    """What a port answers, an error as the value that a model has for it."""
    try:
        return await call
    except OutboxError as error:
        return Raised(type(error).__name__, str(error))


def op_of(verb: str, *args: Any) -> Op:
    """A call as models see it."""
    return Op(0, verb, args, b"")


# Stores


async def check_store_model(store: StateStore, wait: Wait, *, seed: int, step_count: int = STEP_COUNT) -> int:
    """Compare a store with its model, from empty; how many answers were compared.

    Raises:
        AssertionError: they differ.
    """
    duel = StoreDuel(store, seed)
    for step in range(step_count):
        try:
            await duel.step(wait)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}: {error}") from error
    return duel.compared


class StoreDuel:
    """A store and its model, side by side."""

    def __init__(self, store: StateStore, seed: int) -> None:
        self._store = store
        self._model = StoreModel(capabilities=store.capabilities)
        self._state: Any = self._model.initial()
        self._now_ms = 0
        self._chance = random.Random(seed)  # the same seed draws the same operations
        self._versions: dict[DocumentKey, Names] = {}
        self._seen: dict[DocumentKey, list[Version]] = {}
        self.compared = 0

    async def step(self, wait: Wait) -> None:
        """One operation on both."""
        self.compared += 1
        kind = self._chance.choice(("read", "write", "write", "write", "scan", "unfinished", "wait"))
        if kind == "wait":
            seconds = self._chance.choice((1, 4, 11))
            await wait(seconds)
            self._now_ms += seconds * 1_000
        elif kind == "read":
            key = self._key(self._partition())
            self._compare(await self._store.read(key), self._model_says("read", key, ""))
        elif kind == "write":
            await self._write()
        else:
            await self._list(kind)

    async def _write(self) -> None:
        writes = self._drawn()
        theirs = await answer(self._store.write(writes))
        outcome = self._model.outcomes(self._state, op_of("write", tuple(map(self._translated, writes))), self._now_ms)[
            0
        ]
        self._state, ours = outcome.state, outcome.result
        told = f"{writes}: the store says {theirs}, its model {ours}"
        if isinstance(theirs, Raised):
            same(isinstance(ours, Raised) and ours.error == theirs.error, told)
        elif isinstance(theirs, Won):
            same(isinstance(ours, Won) and len(ours.versions) == len(theirs.versions), told)
            for write, their, our in zip(writes, theirs.versions, ours.versions, strict=True):
                self._know(write.key, their, our)
        else:
            same(isinstance(ours, Lost) and ours.operation == theirs.operation, told)
            self._compare(theirs.current, ours.current)

    async def _list(self, kind: str) -> None:
        if kind == "scan":
            partition, prefix = self._partition(), self._chance.choice(("", "b"))
            theirs = [document async for document in self._store.scan(partition, prefix=prefix)]
            ours = self._model_says("scan", partition, prefix)
        else:
            found = [document async for document in self._store.unfinished()]
            theirs = sorted(
                found, key=lambda d: (d.key.partition, d.key.id)
            )  # in which order they come is not promised
            outcomes = self._model.outcomes(self._state, op_of("unfinished", ""), self._now_ms)
            ours = outcomes[0].result[0] if outcomes else ()
        same(len(theirs) == len(ours), f"{kind}: the store gives {theirs}, its model {ours}")
        for their, our in zip(theirs, ours, strict=True):
            self._compare(their, our)

    def _model_says(self, verb: str, *args: Any) -> Any:
        return self._model.outcomes(self._state, op_of(verb, *args), self._now_ms)[0].result

    # Drawing

    def _partition(self) -> str:
        return f"p{self._chance.randrange(PARTITION_COUNT)}"

    def _key(self, partition: str) -> DocumentKey:
        return DocumentKey(partition, f"{'ab'[self._chance.randrange(2)]}{self._chance.randrange(ID_COUNT)}")

    def _drawn(self) -> list[Write]:
        partition = self._partition()
        writes = [self._one(self._key(partition)) for _ in range(self._chance.choice((1, 1, 2, 3)))]
        if self._chance.random() < 0.05:
            writes.append(self._one(self._key("elsewhere")))
        return writes

    def _one(self, key: DocumentKey) -> Write:
        draw = self._chance
        body = draw.choice((b"{}", b'{"pending":true}', b"[1]", b"no json"))
        ttl_s = draw.choice((None, None, 5.0))
        version = draw.choice((*self._seen.get(key, ())[-3:], "never"))
        kind = draw.choice(("create", "replace", "replace", "delete"))
        if kind == "create":
            return Create(key, body, ttl_s)
        return Replace(key, body, version, ttl_s) if kind == "replace" else Delete(key, version)

    # Comparing

    def _names(self, key: DocumentKey) -> Names:
        return self._versions.setdefault(key, Names(f"version of {key}"))

    def _know(self, key: DocumentKey, theirs: Version, ours: Version) -> None:
        same(bool(theirs) == bool(ours), f"{key}: version {theirs!r}, the model's is {ours!r}")
        if theirs:
            self._names(key).learn(theirs, ours)
            self._seen.setdefault(key, []).append(theirs)

    def _translated(self, write: Write) -> Write:
        match write:
            case Create():
                return write
            case Replace():
                return Replace(write.key, write.body, self._names(write.key).ours(write.if_match), write.ttl_s)
            case Delete():
                return Delete(write.key, self._names(write.key).ours(write.if_match))

    def _compare(self, theirs: Document | None, ours: Document | None) -> None:
        told = f"the store gives {theirs}, its model {ours}"
        same((theirs is None) == (ours is None), told)
        if theirs is not None and ours is not None:
            same((theirs.key, theirs.body) == (ours.key, ours.body), told)
            self._know(theirs.key, theirs.version, ours.version)


# Blobs


async def check_blob_model(blobs: BlobStore, *, seed: int, step_count: int = STEP_COUNT) -> int:
    """Compare a blob store with its model, from empty.

    Raises:
        AssertionError: they differ.
    """
    model, draw = BlobModel(), random.Random(seed)  # the same seed draws the same operations
    state: Any = model.initial()
    call: Awaitable[Any]
    for step in range(step_count):
        name, data, bytes_max = draw.choice("abc"), draw.randbytes(draw.randrange(4)), draw.choice((1, 99))
        match draw.randrange(3):
            case 0:
                op, call = op_of("write", name, data), blobs.write(name, data)
            case 1:
                op, call = op_of("read", name, bytes_max), blobs.read(name, bytes_max=bytes_max)
            case _:
                op, call = op_of("delete", name), blobs.delete(name)
        theirs = await answer(call)
        outcome = model.outcomes(state, op, 0)[0]
        state, ours = outcome.state, outcome.result
        told = f"seed {seed}, step {step}: {model.describe(op)}: the store says {theirs}, its model {ours}"
        same(kind_of(theirs) == kind_of(ours), told)
    return step_count


def kind_of(value: Any) -> Any:
    return value.error if isinstance(value, Raised) else value


def same(holds: bool, told: str) -> None:
    if not holds:
        raise AssertionError(told)
