"""Funds between two banks on stores of different kinds, as processors: money is neither made nor lost.

Each bank is a processor over a log of commands.  Only its first semi-transaction may refuse; a deposit for a closed
account is sent back, and a refund for a closed account goes to suspense.  Money under way is an entry of the other
bank's log, so the law can be checked at every prefix of the logs.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.engine import Engine
from outbox.ports import DocumentKey
from outbox.streams import Inputs, OrderedLog, Processor, Step
from outbox.streams.register import Register
from tests.unit.streams.making import values

SUSPENSE = "suspense"


@dataclass(frozen=True)
class Transfer:
    """Where money goes: from a source at one bank to a target at another."""

    from_bank: str
    source: str
    to_bank: str
    target: str


@dataclass(frozen=True)
class Withdraw:
    id: str
    to: Transfer
    amount: int


@dataclass(frozen=True)
class Deposit:
    id: str
    to: Transfer
    amount: int


@dataclass(frozen=True)
class Refund:
    id: str
    to: Transfer
    amount: int


@dataclass(frozen=True)
class Close:
    id: str
    account: str


@dataclass(frozen=True)
class Answer:
    id: str
    text: str


@dataclass
class Bank:
    balances: dict[str, int] = field(default_factory=lambda: {"a": 100, "b": 100})
    closed: list[str] = field(default_factory=list)


Command = Withdraw | Deposit | Refund | Close


def bank(state: Bank, inputs: Inputs, step: Step) -> None:
    """The commands of one bank."""
    for entry in inputs:
        match entry.value:
            case Close(id, account):
                state.closed.append(account)
            case Withdraw(id, to, amount) if to.source in state.closed:
                step.emit("answers", Answer(id, "closed"))
            case Withdraw(id, to, amount) if state.balances.get(to.source, 0) < amount:
                step.emit("answers", Answer(id, "insufficient funds"))
            case Withdraw(id, to, amount):
                state.balances[to.source] -= amount
                step.emit(to.to_bank, Deposit(id, to, amount))
            case Deposit(id, to, amount) if to.target in state.closed:
                step.emit(to.from_bank, Refund(id, to, amount))
            case Deposit(id, to, amount):
                state.balances[to.target] = state.balances.get(to.target, 0) + amount
                step.emit("answers", Answer(id, "done"))
            case Refund(id, to, amount):
                account = SUSPENSE if to.source in state.closed else to.source
                state.balances[account] = state.balances.get(account, 0) + amount
                step.emit("answers", Answer(id, "refunded"))


class Banks:
    """Two banks: `north` on an engine, `south` on a store of single documents of another engine."""

    def __init__(self, north: Engine, south: Engine) -> None:
        self.places: dict[str, Any] = {"north": north, "south": NarrowEngine(south, "item")}
        self.stores = {"north": north.store(), "south": south.store()}

    def commands(self, name: str) -> OrderedLog[Command]:
        return OrderedLog(f"commands-{name}", self.places[name], type=Command)

    def answers(self, name: str) -> OrderedLog[Answer]:
        return OrderedLog(f"answers-{name}", self.places[name], type=Answer)

    def processor(self, name: str) -> Processor[Bank]:
        """A bank, as a process of its own runs it; each writes to its own log and to the other bank's store."""
        outputs = {other: self.commands(other) for other in self.places} | {"answers": self.answers(name)}
        inputs = {"commands": self.commands(name)}
        return Processor(
            name, bank, state=Bank, register=self.places[name], inputs=inputs, outputs=outputs, batch_max=2
        )

    async def run_until_idle(self) -> None:
        """Run both banks until no money is under way."""
        while sum([await self.processor(name).run_until_idle() for name in self.places]):
            pass

    async def register(self, name: str) -> tuple[Bank, Register]:
        """A bank's accounts, and its register, as they are now."""
        document = await self.stores[name].read(DocumentKey(f"processor/{name}", "register"))
        if document is None:
            return Bank(), Register()
        register = msgspec.json.decode(document.body, type=Register)
        return msgspec.json.decode(bytes(register.state), type=Bank), register

    async def balances(self, name: str) -> dict[str, int]:
        return (await self.register(name))[0].balances

    async def total(self) -> int:
        """All balances, and deposits and refunds under way: committed by one bank, not handled by the other."""
        registers = {name: await self.register(name) for name in self.places}
        total = sum(sum(state.balances.values()) for state, _ in registers.values())
        for name, (_, register) in registers.items():
            cursor = register.cursors.get("commands")
            entries = [entry async for entry in self.commands(name).read()]
            under_way = [entry.value for entry in entries if cursor is None or entry.position >= cursor]
            total += sum(each.amount for each in under_way if isinstance(each, Deposit | Refund))
        return total + await self._not_yet_appended(registers)

    async def _not_yet_appended(self, registers: dict[str, tuple[Bank, Register]]) -> int:
        """The money in registers that is in no log yet."""
        amount = 0
        for _, register in registers.values():
            for out in register.outs:
                if out.to in self.places:
                    there = await values(self.commands(out.to))
                    made = [(kind, msgspec.json.decode(raw)) for kind, raw in zip(out.types, out.v, strict=True)]
                    known = {(type(each).__name__, each.id) for each in there if not isinstance(each, Close)}
                    amount += sum(each["amount"] for kind, each in made if (kind, each["id"]) not in known)
        return amount


@pytest.fixture
async def banks() -> AsyncIterator[Banks]:
    async with Engine.in_memory() as north, Engine.in_memory() as south:
        yield Banks(north, south)


def south(source: str, target: str) -> Transfer:
    """From the north to the south."""
    return Transfer("north", source, "south", target)


@pytest.mark.parametrize("seed", range(12))
async def test_no_money_is_made_or_lost_at_any_prefix(banks: Banks, seed: int) -> None:
    chance = random.Random(seed)
    await give(banks, chance)
    replicas = [banks.processor(name).replica() for name in banks.places for _ in range(2)]
    idle = 0
    while idle < 12:
        at = chance.randrange(len(replicas))
        if chance.random() < 0.1:  # one dies, another begins
            replicas[at] = banks.processor(replicas[at].plan.name).replica()
        idle = idle + 1 if (await replicas[at].step()).name == "IDLE" else 0
        assert await banks.total() == 400, f"seed {seed}"
    for name in banks.places:
        await check_every_prefix(banks, name)


async def give(banks: Banks, chance: random.Random) -> None:
    """Ten commands, some of them twice."""
    for n in range(10):
        name = chance.choice(["north", "south"])
        other = "south" if name == "north" else "north"
        transfer = Transfer(name, chance.choice("ab"), other, chance.choice("ab"))
        command: Command = Withdraw(f"t{n}", transfer, chance.randint(1, 80))
        if chance.random() < 0.15:
            command = Close(f"t{n}", chance.choice("ab"))
        log = banks.commands(name)
        for _ in range(chance.randint(1, 2)):
            await log.append(command, id=f"t{n}")


async def check_every_prefix(banks: Banks, name: str) -> None:
    """Handle a bank's log again, one entry after the other: each changes what the bank owes by what it says."""
    state, emitted = Bank(), Counter[str]()
    for entry in [entry async for entry in banks.commands(name).read()]:
        before = sum(state.balances.values())
        step = Step(["north", "south", "answers"], 0, 0)
        bank(state, Inputs({"commands": [entry]}), step)
        sent = [each for other in banks.places for each in step.emitted.get(other, [])]
        came = entry.value.amount if isinstance(entry.value, Deposit | Refund) else 0
        assert sum(state.balances.values()) == before + came - sum(each.amount for each in sent)
        assert all(balance >= 0 for balance in state.balances.values())
        emitted.update(f"{type(each).__name__} {each.id}" for each in sent)
    assert await banks.balances(name) == state.balances, "the register holds what its log says"
    assert set(emitted.values()) <= {1}, "no step moved money twice"


@pytest.mark.parametrize("seed", range(6))
async def test_banks_whose_replicas_are_killed_end_as_without_a_failure(banks: Banks, seed: int) -> None:
    chance = random.Random(seed)
    await give(banks, chance)
    for _ in range(8):
        task = asyncio.create_task(banks.run_until_idle())
        for _ in range(chance.randrange(30)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await banks.total() == 400
    await banks.run_until_idle()
    assert sum([sum((await banks.balances(name)).values()) for name in banks.places]) == 400
    for name in banks.places:
        await check_every_prefix(banks, name)
