"""A user's own account and namespace, measured with the rows of `bench_latency`.

Everything that it needs it makes, under names that nobody has (`outbox-bench-...`): a database with one container, and
four queues; at the end all of it is deleted.  Requests and request units are those that the answers name.  What is
spent is bounded: before each cell by an estimate, which is high, and in the middle of one by what was counted.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from azure.core.exceptions import AzureError
from azure.cosmos.aio import CosmosClient

from outbox.azure import connect
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.azure.usage import Usage, charge_of
from outbox.errors import Refused
from outbox.ports import Output
from outbox_bench import report
from outbox_bench.azure_place import Names, messages_of
from outbox_bench.bench_latency import LINKS_COUNT, Cell, Row, Side, name, of_bare, of_ours, row, table

RU_OF_A_MESSAGE = 40.0
"""More than any row has ever come to."""
OPERATIONS_OF_A_MESSAGE = 4
"""Of Service Bus: sent to the handler, received, completed, and the output sent."""
SEND_COUNT = 100
LOOK_COUNT = 20
KINDS = {"read": "item.read", "create": "item.create", "replace": "item.replace", "delete": "item.delete"}
COSMOS_KINDS = {**KINDS, "batch": "batch", "query": "query"}


class Spent(Refused):
    """The limit is reached."""


@dataclass
class Account:
    """Cosmos DB and Service Bus as they are, and what was asked of them."""

    cosmos: str
    servicebus: str
    names: Names
    ru_max: float
    spent_ru: float = 0.0
    usages: list[Usage] = field(default_factory=list)
    bare: dict[str, tuple[int, float]] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    """How many messages each queue held when the cell began."""

    def watch(self, usage: Usage) -> None:
        self.usages.append(usage)

    def hook(self, response: Any) -> None:
        charge_ru = charge_of(response.http_response.headers)
        if charge_ru:  # an answer about the account has none
            count, ru = self.bare.get("batch", (0, 0.0))
            self.bare["batch"] = count + 1, ru + charge_ru

    async def served(self) -> dict[str, tuple[int, float]]:
        found = dict(self.bare)
        for usage in self.usages:
            for kind, used in usage.by_kind.items():
                if kind in COSMOS_KINDS:
                    count, ru = found.get(COSMOS_KINDS[kind], (0, 0.0))
                    found[COSMOS_KINDS[kind]] = count + used.count, ru + used.charge_ru
            usage.reset()
        self.bare.clear()
        self.spent_ru += sum(ru for _, ru in found.values())
        return found

    async def put(self, queue: str, name: str, keys: list[str]) -> None:
        waiting_ru = sum(usage.charge_ru for usage in self.usages) + sum(ru for _, ru in self.bare.values())
        if self.spent_ru + waiting_ru > self.ru_max:
            raise Spent(f"stopped after {self.spent_ru + waiting_ru:,.0f} request units; give more with --ru-max")
        async with connect(cosmos=self.cosmos, database=self.names.database, servicebus=self.servicebus) as backend:
            messages = messages_of(name, keys)
            for first in range(0, len(messages), SEND_COUNT):
                outputs = [Output(queue, 0, message) for message in messages[first : first + SEND_COUNT]]
                await backend.ports().bus.send(outputs)

    async def count(self, queue: str) -> int:
        return await self._all(queue) - self.counted.get(queue, 0)

    async def begin(self, names: Names) -> None:
        """Begin a cell, with keys of its own."""
        self.names = names
        self.usages.clear()
        self.counted = {queue: await self._all(queue) for queue in (names.added, names.bare_added)}

    async def _all(self, queue: str) -> int:
        async with _namespace(self.servicebus) as namespace:
            found = await namespace.administration().get_queue_runtime_properties(queue)
        return int(found.active_message_count or 0)


def cells(message_count: int) -> list[Cell]:
    """What is measured."""
    base = Cell(rtt_ms=0.0, count_max=message_count)
    found = [replace(base, concurrency=in_flight) for in_flight in (1, 16, 64, 256)]
    found += [replace(base, kind=kind) for kind in ("existing", "warm", "ten")]
    found += [replace(base, kind=kind, scope="item") for kind in ("new", "warm")]
    return found + [replace(base, kind=kind, ledger=True) for kind in ("new", "warm")]


def handled_count(cell: Cell) -> int:
    """How many messages a cell handles, on both sides together."""
    return 2 * (LINKS_COUNT + cell.message_count * (1 if cell.kind == "new" else 2))


def affordable(chosen: Sequence[Cell], ru_max: float) -> list[Cell]:
    """The first of the cells whose estimates fit together."""
    found: list[Cell] = []
    for cell in chosen:
        ru_max -= handled_count(cell) * RU_OF_A_MESSAGE
        if ru_max < 0:
            break
        found.append(cell)
    return found


def announced(chosen: Iterable[Cell], ru_max: float, names: Names) -> str:
    """What will be spent at most, and what is made and deleted."""
    count = sum(map(handled_count, chosen))
    return (
        f"{count:,} messages: at most {min(ru_max, count * RU_OF_A_MESSAGE):,.0f} request units of Cosmos DB, about "
        f"{count * OPERATIONS_OF_A_MESSAGE:,} operations of Service Bus, and a container for as long as it takes.\n"
        f"Made, and deleted at the end: database {names.database}, queues {', '.join(names.queues())}."
    )


@asynccontextmanager
async def made(cosmos: str, servicebus: str, ru_max: float) -> AsyncIterator[Account]:
    """Fresh queues and a fresh database, deleted at the end.

    Raises:
        Refused: they cannot be made; the text says why.
    """
    start = f"outbox-bench-{secrets.token_hex(4)}"
    names = Names(f"{start}-adds", f"{start}-added", f"{start}-bare-adds", f"{start}-bare-added", start)
    account = Account(cosmos, servicebus, names, ru_max)
    try:
        async with connect(cosmos=cosmos, database=start, servicebus=servicebus, create=True) as backend:
            await backend.ports().operations.declare(dict.fromkeys(names.queues(), "unordered"), {})
        yield account
    finally:
        await _delete(cosmos, servicebus, names)


async def _delete(cosmos: str, servicebus: str, names: Names) -> None:
    """Delete what was made; what cannot be deleted is said."""
    left: list[str] = []
    parts = dict(part.partition("=")[::2] for part in cosmos.split(";") if part)
    async with CosmosClient(parts["AccountEndpoint"], parts["AccountKey"]) as client:
        try:
            await client.delete_database(names.database)
        except AzureError:
            left.append(f"database {names.database}")
    async with _namespace(servicebus) as namespace:
        for queue in names.queues():
            try:
                await namespace.administration().delete_queue(queue)
            except AzureError:
                left.append(f"queue {queue}")
    if left:
        print(f"not deleted, delete it yourself: {', '.join(left)}", file=sys.stderr)


@asynccontextmanager
async def _namespace(address: str) -> AsyncIterator[ServiceBusNamespace]:
    namespace = ServiceBusNamespace(address)
    try:
        yield namespace
    finally:
        await namespace.close()


async def round_trip_ms(account: Account) -> float:
    """What a read of one document takes from here, in the middle of some."""
    parts = dict(part.partition("=")[::2] for part in account.cosmos.split(";") if part)
    took: list[float] = []
    async with CosmosClient(parts["AccountEndpoint"], parts["AccountKey"]) as client:
        container = client.get_database_client(account.names.database).get_container_client("outbox")
        for _ in range(LOOK_COUNT):
            started_s = time.perf_counter()
            with suppress(AzureError):
                await container.read_item("nothing", "nowhere")
            took.append((time.perf_counter() - started_s) * 1e3)
    return statistics.median(took)


async def measured(cosmos: str, servicebus: str, *, message_count: int, ru_max: float, repeats: int = 1) -> list[Row]:
    """The rows of an account, as far as its limit goes.

    Raises:
        Refused: the limit has room for nothing, or what is needed cannot be made.
    """
    wanted = [cell for _ in range(repeats) for cell in cells(message_count)]
    chosen = affordable(wanted, ru_max)
    if not chosen:
        need = handled_count(wanted[0]) * RU_OF_A_MESSAGE
        raise Refused(f"{ru_max:,.0f} request units have room for no measurement; --ru-max {need:,.0f} has for one")
    found: dict[Cell, list[tuple[Side, Side]]] = {}
    async with made(cosmos, servicebus, ru_max) as account:
        print(announced(chosen, ru_max, account.names), file=sys.stderr, flush=True)
        rtt_ms = round(await round_trip_ms(account), 1)
        for number, cell in enumerate(chosen):
            await account.begin(replace(account.names, prefix=f"{number}-"))
            try:
                sides = await of_ours(cell, account, account), await of_bare(cell, account, account)
            except Spent as error:
                print(error, file=sys.stderr)
                break
            found.setdefault(replace(cell, rtt_ms=rtt_ms), []).append(sides)
            told = f"{sides[0].messages_per_s:,.0f} messages/s, bare {sides[1].messages_per_s:,.0f}"
            print(f"{number + 1}/{len(chosen)} {name(cell)}: {told}", file=sys.stderr, flush=True)
        print(f"{account.spent_ru:,.0f} request units were spent", file=sys.stderr)
    left = len(wanted) - sum(map(len, found.values()))
    if left:
        print(f"{left} of {len(wanted)} measurements had no room in --ru-max {ru_max:,.0f}", file=sys.stderr)
    return [row(cell, sides) for cell, sides in found.items()]


def publish(rows: list[Row], folder: Path) -> str:
    """Write azure-account.json and azure-account.txt."""
    about = [
        "A worker on this account and namespace, and the bare loop beside it: the public SDKs alone, without marks,",
        "sweeper or retries.  Requests and request units are a message's, as the answers name them, marks included;",
        "`round trip` is what a read of one document took from here.",
        *report.circumstances(Path(tempfile.gettempdir())),
    ]
    return report.publish("azure-account", rows, about, folder, table(rows))


def run(cosmos: str, servicebus: str, folder: Path, *, message_count: int, ru_max: float, repeats: int) -> str:
    """Measure an account; what is printed.

    Raises:
        Refused: it could not be measured; the text says why.
    """
    options: dict[str, Any] = {"message_count": message_count, "ru_max": ru_max, "repeats": repeats}
    try:
        return publish(asyncio.run(measured(cosmos, servicebus, **options)), folder)
    except AzureError as error:
        raise Refused(f"it was not measured: {error}") from error
