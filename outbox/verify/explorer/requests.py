"""HTTP requests under exploration: clients that do not give up, and processes that answer them.

The clients are a resource, modelled as a queue of requests: an answering process takes one under a lock, and answers by
settling it.  A lock that runs out is a client without a response, because the process died or because it takes too
long, and that sends the same request again under the same key; so does one whose response said so.  A copy of a
request is a client that asks twice at once.  What answers is the runtime's own `HttpEntry`, over the scope's ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import msgspec

from outbox.app import App
from outbox.encoding import encoded
from outbox.http import Request, Response
from outbox.http_entry import HttpEntry
from outbox.message import Message
from outbox.ports import Delivery, Output, Ports, Settle, StorePorts
from outbox.registration.routes import Place, find
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.runtime.failures.failure_log import FailureLog, write_nowhere
from outbox.runtime.http.requests import Reader
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.store_scope import StoreProtocol
from outbox.runtime.work import Work
from outbox.verify.explorer.models.bus import BusModel
from outbox.verify.explorer.models.queues import QueueModel
from outbox.verify.explorer.ops import Op, canonical
from outbox.verify.explorer.ports import ExploredBus
from outbox.verify.explorer.programs import BACKOFF, Tasks, at_once
from outbox.verify.explorer.run import Calls
from outbox.verify.explorer.trace_text import short

REQUESTS = "requests"
"""The queue in which clients' requests lie until they are answered."""


class ClientRequest(msgspec.Struct, frozen=True):
    """A request as a client sends it, each time alike: `POST /payments`, an idempotency key, what makes its body.

    A read has a key too, by which it is named here.
    """

    line: str
    key: str
    content: Any

    @property
    def message(self) -> Message:
        """The same as it lies among the clients' requests."""
        return Message(body=encoded(self.content), outbox_id=self.key, correlation_id=self.line)


def request_in(message: Message) -> Request:
    """The request that lies among the clients' as this message."""
    method, _, path = message.correlation_id.partition(" ")
    return Request(method, path, {"idempotency-key": message.outbox_id}, message.body)


def work_of(app: App, message: Message, now_ms: int) -> Work:
    """The work of a request, as the protocols see it.

    Raises:
        LookupError: the application serves nothing there.
        Unfit: it cannot be one.
    """
    request = request_in(message)
    places = [Place(route.method, route.template, Reader(app, route)) for route in app.routes]
    found = find(places, request.method, request.path)
    if found.target is None:
        raise LookupError(f"{message.correlation_id}: nothing is served there; declare it with @app.http")
    if found.target.route.is_read:
        return found.target.read_work(request, found.parameters, "", now_ms)
    return found.target.work(request, found.parameters, "", now_ms)


def digest_of(response: Response) -> str:
    """The digest that tells responses apart."""
    return blake2b(canonical((response.status, dict(response.headers), response.body)), digest_size=6).hexdigest()


def clients_model(asked: Sequence[Output], *, until_ms: int, merges_copies: bool, locks_hold: bool) -> BusModel:
    """A model of the clients.  They know how long a key is remembered, and do not ask again after `until_ms`."""
    return BusModel(
        [QueueModel(REQUESTS)],
        {REQUESTS: [REQUESTS]},
        sent=asked,
        merges_copies=merges_copies,
        locks_hold=locks_hold,
        name="clients",
        closes_ms=until_ms,
        describe=_describe,
    )


def _describe(op: Op) -> str:
    if op.verb != "settle":
        return "take a request"
    delivery, settle = op.args
    return f"answer {short(delivery.message.identity)} {settle.description or 'ask again'}"


MakePorts = Callable[[Calls, Any], Ports | StorePorts]
MakeProtocol = Callable[[Calls, Any], StoreProtocol | None]


@dataclass(frozen=True, slots=True)
class Front:
    """A process that answers up to `batch` requests at a time; `ports` and `protocol` are those of its scope."""

    app: App
    plan: CompiledApp
    ports: MakePorts
    protocol: MakeProtocol
    clients: int
    batch: int
    name: str = "front"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        clients, tasks = ExploredBus(calls, self.clients), Tasks()
        try:
            deliveries = await clients.receive_any([REQUESTS], self.batch)
        except MAY_RETRY:
            return None
        ports = self.ports(calls, SimpleNamespace(now_ms=calls.now_ms))  # all that an entry asks of its backend
        backend: Any = SimpleNamespace(ports=lambda: ports)
        entry = HttpEntry(
            self.app,
            backend,
            plan=self.plan,
            protocol=self.protocol(calls, ports),
            mark_after_s=0,
            sleep=at_once,
            backoff=BACKOFF,
            spawn=tasks.spawn,
            failure_log=FailureLog(lambda: 0, write_nowhere),
        )
        await asyncio.gather(*[self._answer(entry, clients, delivery) for delivery in deliveries])
        await tasks.end()
        return None

    @staticmethod
    async def _answer(entry: HttpEntry, clients: ExploredBus, delivery: Delivery) -> None:
        request = request_in(delivery.message)
        response = await entry.handle(request.method, request.path, request.headers, request.body)
        is_done = "retry-after" not in response.headers
        settle = Settle("complete", digest_of(response), str(response.status)) if is_done else Settle("release")
        with suppress(*MAY_RETRY):  # the client has gone
            await clients.settle(delivery, settle)
