"""The HTTP side of a harness: requests to an application under test, from a client that retries.

After a crash under a request the engine is reopened on the durable bytes, and the request is repeated under the same
key, as a client would.  A response received before the crash counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from outbox.app import App
from outbox.encoding import encoded
from outbox.http import Response
from outbox.http_entry import HttpEntry
from outbox.name_checks import check_served
from outbox.ports import Ports, StorePorts
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.scopes import Scope
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.store_scope import StoreScope
from outbox.verify.faults import SimulatedCrash

CRASH_COUNT_MAX = 1_000
"""How often a process may die under one request."""


@dataclass(frozen=True, slots=True)
class ServedPorts:
    """Ports as a backend."""

    served: Ports | StorePorts

    def ports(self) -> Ports | StorePorts:
        """The ports."""
        return self.served


class HttpClients:
    """The clients of a harness's HTTP entries."""

    def __init__(
        self,
        app: App,
        plan: CompiledApp,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        crash: Callable[[], Awaitable[None]],
        failure_log: FailureLog,
    ) -> None:
        self._failure_log = failure_log
        self._app = app
        self._plan = plan
        self._spawn = spawn
        self._crash = crash
        self._crashing = asyncio.Lock()
        self._life = 0
        self._entry: HttpEntry | None = None

    def open(self, ports: Ports | StorePorts, scope: Scope) -> None:
        """Begin another life of the process; beside its worker, with the same states at hand."""
        self._life += 1
        self._entry = HttpEntry(
            self._app,
            ServedPorts(ports),
            plan=self._plan,
            protocol=scope.protocol if isinstance(scope, StoreScope) else None,
            mark_after_s=0,
            sleep=lambda _: asyncio.sleep(0),
            spawn=self._spawn,
            failure_log=self._failure_log,
        )

    def stop(self) -> None:
        if self._entry is not None:
            self._entry.stop()

    async def request(
        self, method: str, path: str, json: Any, key: str | None, headers: Mapping[str, str] | None, body: bytes
    ) -> Response:
        """Send a request until there is a response.

        Raises:
            UnknownDestination: the application serves nothing there; a missing state would be a 404 too.
            TypeError: it has two bodies.
        """
        check_served(self._app, method, path)
        if json is not None and body:
            raise TypeError(f"{method} {path}: give json= or body=, not both")
        sent = dict(headers or {}) if key is None else {**(headers or {}), "idempotency-key": key}
        body = body if json is None else encoded(json)
        for _ in range(CRASH_COUNT_MAX):
            response = await self._sent(method, path, sent, body)
            if response is not None:
                return response
        raise RuntimeError(f"the process died {CRASH_COUNT_MAX} times under {method} {path}")

    async def _sent(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Response | None:
        """Send a request once, and wait for its task; None if the process died before it answered."""
        entry, life = self._entry, self._life
        assert entry is not None, "the harness is open"
        response: Response | None = None
        try:
            response, task = await entry.answered(method, path, headers, body)
            if task is not None:
                await asyncio.wait([task])
                if not task.cancelled():
                    task.result()
        except SimulatedCrash:
            async with self._crashing:
                if self._life == life:  # else it died under another request at the same moment
                    await self._crash()
        return response
