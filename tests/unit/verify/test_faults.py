"""Ports that fail on purpose: every call of each fails as planned, and the same seed draws the same faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from outbox.errors import OutcomeUnknown, Throttled
from outbox.message import Message
from outbox.ports import Delivery, Output, Settle, StoreCapabilities
from outbox.verify.faults import FaultPlan, Faults, FaultyBlobs, FaultyBus, FaultyJournal, FaultyStore, SimulatedCrash

DELIVERY = Delivery("q", 1, Message(body=b"", outbox_id="m"), 0, 0, 0)
CALLS: dict[str, tuple[type[Any], str, tuple[Any, ...], dict[str, Any]]] = {
    "claim": (FaultyJournal, "claim", (["q"],), {"count_max": 1, "wait_s": 0}),
    "load": (FaultyJournal, "load", ([], []), {}),
    "commit": (FaultyJournal, "commit", (None,), {}),
    "durable": (FaultyJournal, "durable", (), {}),
    "renew": (FaultyJournal, "renew", ([],), {}),
    "release": (FaultyJournal, "release", ([],), {}),
    "read": (FaultyStore, "read", (None,), {}),
    "write": (FaultyStore, "write", ([],), {}),
    "send": (FaultyBus, "send", ([],), {}),
    "receive": (FaultyBus, "receive", ("q",), {"count_max": 1, "wait_s": 0}),
    "dead-letter": (FaultyBus, "settle", (DELIVERY, Settle("dead-letter")), {}),
    "renew of a bus": (FaultyBus, "renew", (DELIVERY,), {}),
    "write blob": (FaultyBlobs, "write", ("b", b""), {}),
    "read blob": (FaultyBlobs, "read", ("b",), {"bytes_max": 1}),
    "delete blob": (FaultyBlobs, "delete", ("b",), {}),
}


class Port:
    """Any port: notes its calls, and answers each with nothing."""

    def __init__(self) -> None:
        self.calls = list[str]()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def called(*arguments: Any, **options: Any) -> Sequence[Any]:
            self.calls.append(name)
            return []

        return called


@pytest.mark.parametrize("name", CALLS)
async def test_every_call_fails_as_planned(name: str) -> None:
    kind, method, arguments, options = CALLS[name]
    port, turns = Port(), list[str]()
    plan = FaultPlan(Faults(crashes=((1, "before"), (2, "after")), refused=(3,), lost=(4,), delayed=(5,)))
    call = getattr(kind(port, plan, *([None] if kind is FaultyJournal else [])), method)
    effects = []
    for error in (SimulatedCrash, SimulatedCrash, Throttled, OutcomeUnknown):
        with pytest.raises(error):
            await call(*arguments, **options)
        effects.append(len(port.calls))
    assert effects == [0, 1, 1, 2]

    async def go_first() -> None:
        turns.append(f"first of {len(port.calls)}")

    other = asyncio.ensure_future(go_first())
    await call(*arguments, **options)
    await other
    assert turns == ["first of 2"] and port.calls == [method] * 3
    assert [fired.partition(", ")[2] for fired in plan.fired] == [name.removesuffix(" of a bus")] * 5


async def test_a_duplicate_on_a_bus_is_a_copy_under_another_id() -> None:
    sent = list[Output]()

    class Bus:
        async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
            return [DELIVERY, DELIVERY]

        async def send(self, outputs: Sequence[Output]) -> None:
            sent.extend(outputs)

    await FaultyBus(cast(Any, Bus()), FaultPlan(Faults(duplicates=(2,)))).receive("q", count_max=2, wait_s=0)
    assert [(each.message.identity, each.message.broker_id) for each in sent] == [("m", "m-copy")]


def test_a_store_whose_replies_may_be_lost_says_so() -> None:
    port: Any = Port()
    port.capabilities = StoreCapabilities("item", 1, 1, tells_current=False, ambiguous_replies=False)
    assert FaultyStore(port, FaultPlan()).capabilities.ambiguous_replies


def test_a_seed_draws_as_many_faults_as_were_asked_for_and_the_same_again() -> None:
    options = {"crashes": 1, "lost": 2, "refused": 3, "delayed": 4, "duplicates": 2, "within": 10}
    drawn = [Faults.drawn(seed=seed, **options) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    kinds = [[n for n, _ in drawn[0].crashes], drawn[0].lost, drawn[0].refused, drawn[0].delayed, drawn[0].duplicates]
    assert list(map(len, kinds)) == [1, 2, 3, 4, 2]
    assert sorted(n for kind in kinds[:-1] for n in kind) == list(range(1, 11))
    assert len(Faults.drawn(seed=1, lost=9, within=4).lost) == 4


@pytest.mark.parametrize("name", ["lost", "refused", "delayed", "duplicates"])
def test_calls_are_counted_from_one(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}=\(0,\): a tuple of call numbers from 1"):
        Faults(**cast(Any, {name: (0,)}))
