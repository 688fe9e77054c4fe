"""A stand-in for the batches of a Synapse Spark pool, over HTTP, as its reference and its SDK's models describe them.

Ids count up, the list is newest first in pages of twenty at most, tags and names come back, a token is asked for, a
request over 100 kB is refused.  What goes wrong is said beforehand: for each creation in turn one of

    done    the batch is made and answered               lost   it is made, and the connection breaks
    busy    429 with Retry-After, nothing is made        broken  500, nothing is made
    dark    500, and it is made                      late    the connection breaks, and it is made later
    dusk    500, and it is made later

A batch that is made "runs" whatever the test has given it to run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from azure.core.credentials import AccessToken

from outbox.runtime.failures.redacting import redacted
from spark_jobs.submitting.synapse import PAGE_COUNT, PAYLOAD_BYTES_MAX, PoolSettings, SynapseBatches

TOKEN = "eyJ-a-token-for-tests"
ROOT = "/livyApi/versions/2019-11-01-preview/sparkPools/small/batches"
LIVE = ("not_started", "starting", "running")


@dataclass
class Livy:
    """The service."""

    run: Callable[[dict[str, Any]], Awaitable[None]] | None = None
    faults: list[str] = field(default_factory=list)
    late_s: float = 0.15
    reply_s: float = 0.0
    keeps_tags: bool = True
    batches: list[dict[str, Any]] = field(default_factory=list)
    creates: int = 0
    pages: int = 0
    before_page: Callable[[], None] = lambda: None
    url: str = ""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Livy]:
        app = web.Application(client_max_size=1 << 20)
        app.router.add_post(ROOT, self._create)
        app.router.add_get(ROOT, self._list)
        app.router.add_get(ROOT + r"/{id:\d+}", self._get)
        app.router.add_delete(ROOT + r"/{id:\d+}", self._cancel)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
            await self.quiet()
        finally:
            await runner.cleanup()

    async def quiet(self) -> None:
        """Wait until everything that is under way has happened."""
        while self.tasks:
            await asyncio.gather(*self.tasks)

    def client(self, **settings: Any) -> SynapseBatches:
        """A client of it, whose pauses are short."""
        pool = PoolSettings(self.url, "small", "abfss://jobs@lake/submitted.py", ("abfss://jobs@lake/jobs.zip",))
        settings = {"request_s": 0.5, "chance": lambda: 0.5, "sleep": lambda s: asyncio.sleep(s / 20), **settings}
        return SynapseBatches(pool, token, **settings)

    def made(self, **fields: Any) -> dict[str, Any]:
        """Make a batch."""
        batch = {"id": len(self.batches) + 1, "state": "not_started", "result": "Uncertain", "appId": None, **fields}
        batch |= {"livyInfo": {"currentState": "not_started"}, "errorInfo": None, "log": None, "jobType": "SparkBatch"}
        if not self.keeps_tags:
            batch["tags"] = None
        self.batches.append(batch)
        if self.run is not None:
            self._later(self._worked(batch))
        return batch

    async def _worked(self, batch: dict[str, Any]) -> None:
        assert self.run is not None
        await self.run(batch)

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _late(self, asked: dict[str, Any]) -> None:
        await asyncio.sleep(self.late_s)
        self.made(**asked)

    async def _create(self, request: web.Request) -> web.StreamResponse:
        self.creates += 1
        if refused := _refused(request):
            return refused
        body = await request.read()
        if len(body) > PAYLOAD_BYTES_MAX:
            return _error(400, "LivyPayloadTooLarge")
        asked = json.loads(body)
        if not asked.get("name") or not asked.get("file"):
            return _error(400, "name and file are required")
        assert redacted(body.decode()) == body.decode(), "no secret is handed to the service"
        kept = ("name", "tags", "args", "file", "pyFiles", "numExecutors", "executorCores", "executorMemory")
        asked = {key: asked[key] for key in kept}
        fault = self.faults.pop(0) if self.faults else "done"
        if fault == "busy":
            return _error(429, "TooManyRequests", {"Retry-After": "1"})
        if fault == "moved":
            raise web.HTTPTemporaryRedirect(request.url)
        if fault in ("late", "dusk"):
            self._later(self._late(asked))
        if fault in ("broken", "late", "dusk"):
            return _cut(request) if fault == "late" else _error(500, "InternalServerError")
        batch = self.made(**asked)
        await asyncio.sleep(self.reply_s)
        if fault in ("lost", "dark"):
            return _cut(request) if fault == "lost" else _error(500, "InternalServerError")
        return web.json_response(batch)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if refused := _refused(request):
            return refused
        self.pages += 1
        self.before_page()
        start, size = int(request.query.get("from", 0)), min(int(request.query.get("size", PAGE_COUNT)), PAGE_COUNT)
        newest_first = self.batches[::-1]
        page = newest_first[start : start + size]
        return web.json_response({"from": start, "total": len(page), "sessions": page})

    async def _get(self, request: web.Request) -> web.StreamResponse:
        found = [batch for batch in self.batches if batch["id"] == int(request.match_info["id"])]
        return _refused(request) or (web.json_response(found[0]) if found else _error(404, "BatchNotFound"))

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        found = [batch for batch in self.batches if batch["id"] == int(request.match_info["id"])]
        if refused := _refused(request):
            return refused
        if not found:
            return _error(404, "BatchNotFound")
        if found[0]["state"] in LIVE:
            found[0] |= {"state": "killed", "result": "Cancelled"}
        return web.Response()


async def token() -> AccessToken:
    return AccessToken(TOKEN, 1 << 40)


def _refused(request: web.Request) -> web.Response | None:
    return None if request.headers.get("Authorization") == f"Bearer {TOKEN}" else _error(401, "no token")


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"code": text, "message": text}, status=status, headers=headers)


def _cut(request: web.Request) -> web.Response:
    """Break the connection before an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
