"""The host: functions indexed as Azure's worker does it, started by messages, timers and requests.

A function that takes longer than functionTimeout ends the host, as Azure ends the worker with all that runs in it.
What Azure would do and this does not: scale, keep keys for HTTP functions, keep one timer over all hosts (each host
runs its own), write to storage.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient

from tools.local_functions import wire
from tools.local_functions.bindings import unserved
from tools.local_functions.messages import timer_data, to_trigger
from tools.local_functions.pump import Pump, Source
from tools.local_functions.settings import load_local_settings, read_host_file, resolved
from tools.local_functions.timers import Schedule
from tools.local_functions.wire import TypedData
from tools.local_functions.workers import Function, FunctionsWorker, Result, make_worker

log = logging.getLogger("local_functions")

CALL_COUNT_MAX = 16
SESSION_COUNT_MAX = 4
"""At most so many here, whatever host.json says: each session is a link of its own."""
CANCEL_COUNT_MAX, CANCEL_AGAIN_S = 20, 1.0
BODY_MAX_BYTES = 100 << 20
_PARAMETER = re.compile(r"\{(\*?)(\w+)(?::[^}?]+)?(\??)\}")


class HostFailed(Exception):
    """The host cannot go on."""


class FunctionsHost:
    """A Functions app at work on this machine; use it as an async context manager."""

    def __init__(
        self,
        folder: Path | str,
        *,
        worker: str = "auto",
        port: int | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Take the folder that host.json is in; without a `port` nothing listens.

        `prepare` is awaited when the functions are indexed, before anything starts them.
        """
        self.folder = Path(folder).resolve()
        self.port = port
        self.functions: dict[str, Function] = {}
        self.left_out: list[str] = []
        """Functions that cannot be served here."""
        self._kind = worker
        self._prepare = prepare
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._failed: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        """Index and start; a function with a binding that is not served here is named and left out.

        Raises:
            IndexingFailed, ValueError: Azure would refuse this folder, or a setting is missing.
        """
        load_local_settings(self.folder)
        self.host_file = read_host_file(self.folder)
        self.worker: FunctionsWorker = make_worker(self._kind)
        self._failed = asyncio.get_running_loop().create_future()
        for one in await self.worker.start(self.folder):
            if why := unserved(one):
                log.error("function %s is not started: %s", one.name, why)
                self.left_out.append(one.name)
            else:
                self.functions[one.name] = one
        self._routes = Routes(
            list(self.functions.values()), self.host_file.route_prefix, lambda one, data: self._run(one.name, data, {})
        )
        try:
            if self.port is not None:
                await self._listen(self.port)
            if self._prepare is not None:
                await self._prepare()
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = set(self._tasks)
        for _ in range(CANCEL_COUNT_MAX):  # a client that is opening or closing a link may swallow a cancellation
            for task in left:
                task.cancel()
            if left:
                _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
        if left:
            log.error("%d tasks do not end, whatever they are told; they are left", len(left))
        await asyncio.gather(*set(self._tasks) - left, return_exceptions=True)
        await self._stack.aclose()

    async def wait_failed(self) -> None:
        """Wait until the host cannot go on, and raise why."""
        assert self._failed is not None, "the host was not started"
        await asyncio.shield(self._failed)

    # Starting functions by hand

    async def deliver(self, name: str, message: ServiceBusReceivedMessage) -> Result:
        """Start a function with a message, as its trigger would."""
        binary = str(self.functions[name].trigger.get("dataType", "")).upper() == "BINARY"
        return await self._run(name, *to_trigger(message, binary=binary))

    async def tick(self, name: str) -> Result:
        """Start a timer's function."""
        return await self._run(name, timer_data(), {})

    async def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b"", query: str = ""
    ) -> web.Response:
        """Answer a request as the port would."""
        url = f"http://localhost{path}" + (f"?{query}" if query else "")
        parameters = dict(pair.partition("=")[::2] for pair in query.split("&") if pair)
        return await self._routes.answer(method, path, headers or {}, body, url=url, query=parameters)

    async def _run(self, name: str, data: TypedData, metadata: Mapping[str, TypedData]) -> Result:
        timeout_s = self.host_file.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                result = await self.worker.invoke(name, data, metadata)
        except TimeoutError:
            self._fail(f"{name} took longer than functionTimeout ({timeout_s:g} s); Azure kills the worker for that")
            return Result(False, error="timeout", is_answered=False)
        if not result.ok:
            log.error("%s failed: %s", name, result.error)
            log.debug("%s", result.stack)
        return result

    def _fail(self, text: str) -> None:
        log.error("%s", text)
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(HostFailed(text))
            self._failed.exception()  # somebody may look at it later, or nobody

    # Triggers

    async def _start(self) -> None:
        clients: dict[str, ServiceBusClient] = {}
        for function in self.functions.values():
            match function.trigger["type"]:
                case "serviceBusTrigger":
                    connection = str(function.trigger["connection"])
                    if connection not in clients:
                        clients[connection] = await self._stack.enter_async_context(_client(connection))
                    self._spawn(self._pump(function, clients[connection]).work(), function.name)
                case "timerTrigger":
                    schedule = Schedule(resolved(str(function.trigger["schedule"]), os.environ))
                    self._spawn(self._timer(function, schedule), function.name)

    def _pump(self, function: Function, client: ServiceBusClient) -> Pump:
        trigger, host = function.trigger, self.host_file
        if "queueName" in trigger:
            path = resolved(trigger["queueName"], os.environ)
        else:
            topic, name = (resolved(trigger[key], os.environ) for key in ("topicName", "subscriptionName"))
            path = f"{topic}/Subscriptions/{name}"
        completing = trigger.get("autoCompleteMessages")
        if completing is not None:  # what a trigger says itself
            host = replace(host, is_completing=bool(completing))
        has_sessions = bool(trigger.get("isSessionsEnabled"))
        limits = (host.session_count_max, SESSION_COUNT_MAX) if has_sessions else (host.call_count_max, CALL_COUNT_MAX)

        async def run(message: ServiceBusReceivedMessage) -> Result:
            return await self.deliver(function.name, message)

        return Pump(Source(path, has_sessions, min(limits)), client, run, host)

    async def _timer(self, function: Function, schedule: Schedule) -> None:
        if function.trigger.get("runOnStartup"):
            await self.tick(function.name)
        while True:
            due = schedule.after(datetime.now(UTC))
            await asyncio.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))
            await self.tick(function.name)

    def _spawn(self, work: Any, name: str) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(f"the trigger of {task.get_name()} failed: {error!r}")

    # HTTP

    async def _listen(self, port: int) -> None:
        app = web.Application(client_max_size=BODY_MAX_BYTES)
        app.router.add_get("/admin/host/status", self._status)
        app.router.add_post("/admin/functions/{name}", self._by_hand)
        app.router.add_route("*", "/{path:.*}", self._routes.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise HostFailed(f"port {port} is taken; give another by --port, or --port 0 for any free one") from error
        self.port = int(runner.addresses[0][1])

    async def _status(self, request: web.Request) -> web.Response:
        functions = {name: one.trigger["type"] for name, one in self.functions.items()}
        return web.json_response({"state": "Running", "worker": self.worker.name, "functions": functions})

    async def _by_hand(self, request: web.Request) -> web.Response:
        """Start a timer's function now, as `func` lets one."""
        name = request.match_info["name"]
        function = self.functions.get(name)
        if function is None or function.trigger["type"] != "timerTrigger":
            return web.Response(status=404, text=f"no timer is called {name}\n")
        result = await self.tick(name)
        return web.Response(status=202 if result.ok else 500, text="" if result.ok else result.error)


@dataclass(frozen=True, slots=True)
class Route:
    """One HTTP function."""

    function: Function
    pattern: re.Pattern[str]
    methods: frozenset[str]
    """Empty: all of them."""


class Routes:
    """HTTP to functions, as one aiohttp handler: routes as triggers name them, below the prefix of host.json."""

    def __init__(
        self, functions: list[Function], prefix: str, run: Callable[[Function, TypedData], Awaitable[Result]]
    ) -> None:
        self._routes = [_route(one, prefix) for one in functions if one.trigger["type"] == "httpTrigger"]
        self._run = run

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request."""
        body = await request.read()
        url, query = str(request.url), dict(request.query)
        headers = {name.lower(): value for name, value in request.headers.items()}
        return await self.answer(request.method, request.path, headers, body, url=url, query=query)

    async def answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, url: str, query: Mapping[str, str]
    ) -> web.Response:
        """Find the function of a request and run it."""
        found = [(route, match) for route in self._routes if (match := route.pattern.fullmatch(path))]
        if not found:
            return web.Response(status=404, text=f"no function has the route {path}\n")
        for route, match in found:
            if not route.methods or method in route.methods:
                params = {name: value for name, value in match.groupdict().items() if value is not None}
                data = wire.http(method, url, headers, body, params=params, query=query)
                return _response(await self._run(route.function, data))
        allowed = ", ".join(sorted({name for route, _ in found for name in route.methods}))
        return web.Response(status=405, headers={"Allow": allowed}, text=f"use {allowed}\n")


def _route(function: Function, prefix: str) -> Route:
    trigger = function.trigger
    own = function.name if trigger.get("route") is None else str(trigger["route"])
    path = "/".join(part for part in (prefix.strip("/"), own.strip("/")) if part)
    pattern, end = "/", 0
    for match in _PARAMETER.finditer(path):
        pattern += re.escape(path[end : match.start()])
        star, name, optional = match.groups()
        pattern += f"(?P<{name}>{'.*' if star else '[^/]+'}){'?' if optional else ''}"
        end = match.end()
    methods = frozenset(str(method).upper() for method in trigger.get("methods", []))
    return Route(function, re.compile(pattern + re.escape(path[end:]) + "/?"), methods)


def _response(result: Result) -> web.Response:
    if not result.ok:
        return web.Response(status=500)  # as on Azure: nothing of the error leaves
    if result.value is None:
        return web.Response(status=204)
    answer = result.value.value
    if result.value.kind != "http":
        return web.Response(text=str(answer))
    headers = {name: text for name, text in answer.headers.items() if name.lower() != "content-length"}
    return web.Response(status=int(answer.status_code), headers=headers, body=answer.body.value)


def _client(connection: str) -> ServiceBusClient:
    """A client by the setting that a trigger names, as the host finds it.

    Raises:
        ValueError: there is none.
    """
    address = os.environ.get(connection) or os.environ.get(f"{connection}__fullyQualifiedNamespace")
    if not address:
        raise ValueError(
            f"app setting {connection} or {connection}__fullyQualifiedNamespace is missing; a trigger names it"
        )
    if "=" in address:
        return ServiceBusClient.from_connection_string(address)
    from azure.identity.aio import DefaultAzureCredential

    return ServiceBusClient(address, DefaultAzureCredential())
