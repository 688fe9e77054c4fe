"""The model of a bus, the engine's bus and Service Bus through the real SDK, given the same drawn operations.

    python -m tests.wire.on_azure.bus_duel [--seeds 20] [--first 0] [--steps 40]

Results and kinds of errors must be among the model's.  Not compared is what Service Bus does not have or an adapter
does not know:

* to give a message back *until a time*: the adapter lets it rest under its lock, and has said yes by then; not drawn;
* whether a lock was lost under a release, which the protocol sends without asking for an answer;
* locks that run out by waiting: a link reads ahead, and that counts as a delivery then; they are made to run out;
* the lock of one message of a session: the session has one for all, which goes with its link;
* the exact end of a renewed session: one renewal serves all of its messages for a while.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec

from outbox.azure.servicebus.bus import ServiceBusBus
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.backend.apart import EngineBus
from outbox.engine.engine import Engine
from outbox.ports import Delivery, MessageBus, Settle
from outbox.testing import VirtualClock
from outbox.verify.explorer.models.bus import BusModel
from outbox.verify.explorer.ops import Raised
from tests.contract.model_duels import answer, kind_of, op_of, same
from tests.contract.queue_model_duels import QUEUES, READ, ROUTES, Bench, BusDuel, drawn_messages

Side = Literal["engine", "service bus"]
SIDES: tuple[Side, ...] = ("engine", "service bus")
WEIGHTS = {"send": 2, "receive": 3, "settle": 4, "renew": 1, "lapse": 1, "wait": 1}
LAPSING = "plain"
FOUND_WITHIN_S, NONE_WITHIN_S = 5.0, 0.3
"""How long a message may take that the model has; how long nothing is waited for."""
HOWS: tuple[Literal["complete", "abandon", "release", "dead-letter"], ...]
HOWS = ("complete", "abandon", "release", "dead-letter")


class SameDuel(BusDuel):
    """A bus beside its model, as far as Service Bus can be compared."""

    def __init__(self, bus: MessageBus, model: BusModel, bench: Bench, seed: int) -> None:
        super().__init__(bus, model, bench, seed)
        self.bus = bus
        self.said: list[str] = []
        """What was drawn and what came of it, for whoever looks into a difference."""

    def _fits(self, theirs: Delivery, ours: Delivery) -> bool:
        return plain(theirs) == plain(ours) and self._sequences.fits(theirs.sequence, ours.sequence)

    async def receive(self) -> None:
        queue, count = self.draw.choice(READ), self.draw.choice((1, 2))
        op = op_of("receive", queue, count)
        expected = self.model.outcomes(self.state, op, self.now_ms)
        wait_s = FOUND_WITHIN_S if expected else NONE_WITHIN_S
        theirs = await self.bus.receive(queue, count_max=count, wait_s=wait_s)
        self.compared += 1
        self.took(theirs, op)
        self.said.append(f"receive {queue} {count}: {[one.message.identity for one in theirs]}")

    async def wait(self) -> None:
        seconds = self.draw.choice((1, 3))
        await self.bench.wait(seconds)
        self.said.append(f"wait {seconds}")

    async def renew(self) -> None:
        pair = self.one()
        if pair is None:
            return
        said = await answer(self.bus.renew(pair[0]))
        ours = self.model.outcomes(self.state, op_of("renew", pair[1]), self.now_ms)[0].result
        self.compared += 1
        self.said.append(f"renew {pair[1].message.identity}: {kind_of(said)}")
        if isinstance(said, Raised) or isinstance(ours, Raised):
            same(kind_of(said) == kind_of(ours), f"a renewal came to {said}, the model's to {ours}")
        else:
            same(self.now_ms < said <= ours, f"renewed until {said}, by the model until {ours} at most")

    def lapse(self) -> None:
        pair = self.one()
        if pair is None or pair[0].queue != LAPSING or self.model.queues.holder(self.state, pair[1]) is None:
            return
        self.bench.lapse(pair[0].queue, pair[0].sequence)
        self.state = self.with_lock_over(pair[1])
        self.said.append(f"lapse {pair[1].message.identity}")

    async def send(self) -> None:
        await super().send()
        self.said.append("send")

    async def settle(self) -> None:
        pair = self.one()
        if pair is None:
            return
        how = self.draw.choice(HOWS)
        settle = Settle(how, "unfit" if how == "dead-letter" else "")
        said = await answer(self.bus.settle(pair[0], settle))
        outcome = self.model.outcomes(self.state, op_of("settle", pair[1], settle), self.now_ms)[0]
        self.state = outcome.state
        self.compared += 1
        theirs, ours = kind_of(said), kind_of(outcome.result)
        told = f"{settle} came to {said}, the model's to {outcome.result}"
        same(theirs == ours or (how, theirs, ours) == ("release", None, "LockLost"), told)
        self.said.append(f"{how} {pair[1].message.identity}: {ours}")


def plain(delivery: Delivery) -> Delivery:
    """A delivery without what only one side can know: numbers, locks, digests, and under which name an id travels."""
    message = delivery.message
    if message.message_id == message.identity:
        message = msgspec.structs.replace(message, outbox_id=message.identity, message_id="")
    nothing: dict[str, Any] = {"sequence": 0, "lock": 0, "locked_until_ms": 0, "fingerprint": b""}
    return msgspec.structs.replace(delivery, message=message, **nothing)


@asynccontextmanager
async def bus_of(side: Side) -> AsyncIterator[tuple[MessageBus, Bench]]:
    """A bus on an engine of its own, behind the real SDK or not, and the bench that goes with it."""
    clock = VirtualClock(time.time())  # the SDK compares locks with the real time

    async def wait(seconds: float) -> None:
        clock.seconds += seconds
        engine.tick()
        await asyncio.sleep(0.02)

    async with Engine.in_memory(clock=clock) as engine:
        bench = Bench(engine.ports().operations, wait, engine.broker.lapse_lock)
        if side == "engine":
            yield EngineBus(engine.core, engine.broker), bench
            return
        async with ServiceBusServer(engine) as server:
            namespace = ServiceBusNamespace(server.connection_string)
            ordered = [queue.path for queue in QUEUES if queue.is_ordered]
            bus = ServiceBusBus(namespace, ordered=ordered, now_ms=engine.now_ms)
            try:
                yield bus, bench
            finally:
                await bus.close()
                await namespace.close()


async def fight(side: Side, seed: int, step_count: int) -> int:
    """Do drawn operations on one side and on the model; how many answers were compared.

    Raises:
        AssertionError: they differ.
    """
    async with bus_of(side) as (bus, bench):
        start_ms = bench.operations.now_ms()
        outputs = drawn_messages(random.Random(seed), start_ms)  # the same seed draws the same messages
        await bench.prepare(outputs)
        model = BusModel(QUEUES, ROUTES, sent=outputs, start_ms=start_ms, merges_copies=False)
        duel = SameDuel(bus, model, bench, seed)
        for step in range(step_count):
            name = duel.draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            try:
                done = getattr(duel, name)()
                if done is not None:
                    await done
                await duel.compare_dead_letters()
            except AssertionError as error:
                way = "; ".join(duel.said)
                raise AssertionError(f"{side}, seed {seed}, step {step}, {name}: {error}; after {way}") from error
    return int(duel.compared)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args(argv)
    differing = 0
    for seed in range(options.first, options.first + options.seeds):
        for side in SIDES:
            try:
                told = f"{asyncio.run(fight(side, seed, options.steps))} answers compared"
            except AssertionError as error:
                differing, told = differing + 1, str(error)
            print(f"{side}, seed {seed}: {told}", flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
