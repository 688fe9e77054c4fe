"""Applications in one process of a Functions host: their settings, and what handles their messages and requests.

What one process of the host knows of an application is kept here, once for each application: the host starts functions
one by one and has no other place for what they share.  `triggers` registers functions that call these; a trigger of
one's own calls `process`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import azure.functions as func

from outbox.app import App
from outbox.azure.functions.processor import Processor, pause_s
from outbox.azure.functions.settings import FunctionsSettings
from outbox.errors import OutboxError, Refused
from outbox.ports import Backend, NoBlobs
from outbox.runtime.delivery.claim_check import check_blobs
from outbox.runtime.http.responses import unavailable
from outbox.runtime.start.plan import CompiledApp, compile_app

log = logging.getLogger("outbox.functions")


class Site:
    """One application in this process: its settings, and its processor once the running event loop has one."""

    def __init__(self, app: App, settings: FunctionsSettings) -> None:
        if settings.has_blobs is False:
            check_blobs(app, NoBlobs())
        self.app = app
        self.settings = settings
        self.plan = compile_app(app)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._backend: Backend | None = None
        self._processor: Processor | None = None

    async def processor(self) -> Processor:
        """The processor, open; one invocation opens it and the others wait.

        Raises:
            OutboxError: the backend cannot be used, or not reached now; the next invocation tries again.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # clients belong to their loop; those of another are not ours to close
            self._loop, self._opening = loop, asyncio.Lock()
            self._backend = self._processor = None
        if self._processor is not None:
            return self._processor
        async with self._opening:
            if self._processor is None:
                if self._backend is None:
                    self._backend = self.settings.connect()
                made = Processor(self.app, self._backend, self.settings)
                await made.open()
                self._processor = made
            return self._processor

    async def close(self) -> None:
        """Await the work under way, and close the backend of this loop, if it has one to close."""
        processor, backend = self._processor, self._backend
        self._processor = self._backend = None
        if processor is not None:
            await processor.finish()
        close_backend = getattr(backend, "close", None)
        if close_backend is not None:
            await close_backend()


_sites: dict[int, Site] = {}
"""By the identity of their application, which each of them keeps alive."""


async def process(
    app: App, message: func.ServiceBusMessage, *, source: str = "", settings: FunctionsSettings | None = None
) -> None:
    """Handle a message in a trigger of one's own; let what it raises out, so that the message is redelivered.

    `source` is the queue, or `topic/Subscriptions/name`, that the trigger reads; it may be left out where the
    application reads one only, or only one takes messages of this type.  `settings` are needed where no blueprint of
    the application is registered.  The trigger must say `data_type=func.DataType.BINARY`.

    Raises:
        GivenBack: the message must be redelivered.
        Refused: the source or the settings are not known.
    """
    site = site_of(app, settings)
    source = source or _source_of(site.plan, message)
    async with edge():
        try:
            processor = await site.processor()
        except Exception:
            await asyncio.sleep(pause_s(message.delivery_count or 1, random.random()))
            raise
        await processor.message(source, message)


async def answer(
    app: App, asked: func.HttpRequest, path: str, *, settings: FunctionsSettings | None = None
) -> func.HttpResponse:
    """Answer a request to one of the application's HTTP entries, in a function of one's own; `path` is the entry's."""
    site = site_of(app, settings)
    query = urlsplit(asked.url).query
    async with edge():
        try:
            processor = await site.processor()
        except OutboxError:
            log.exception("the backend cannot be used")
            response = unavailable()
        else:
            whole = f"{path}?{query}" if query else path
            response = await processor.request(asked.method, whole, asked.headers, asked.get_body())
    return func.HttpResponse(response.body, status_code=response.status, headers=dict(response.headers))


async def sweep(app: App, *, settings: FunctionsSettings | None = None) -> None:
    """Finish what crashes have left; for a timer of one's own.

    Raises:
        OutboxError: the backend cannot be asked now; the next run does it.
    """
    async with edge():
        await (await site_of(app, settings).processor()).sweep()


def register(app: App, settings: FunctionsSettings) -> None:
    """Give an application its settings in this process, where no blueprint does; nothing is opened yet.

    Raises:
        Refused: it has others already.
    """
    site_of(app, settings)


def registered() -> list[App]:
    """The applications that have settings in this process, by a blueprint or by `register`."""
    return [site.app for site in _sites.values()]


async def close(app: App) -> None:
    """Close what this event loop has open of an application; for tests, because a host's process just ends."""
    await site_of(app, None).close()


async def processor_of(app: App) -> Processor:
    """The open processor of an application in this process; its `client` sends and reads states."""
    return await site_of(app, None).processor()


@asynccontextmanager
async def edge() -> AsyncIterator[None]:
    """Let no exception out that the worker cannot answer: of others than `Exception` its host would never hear."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"the invocation was ended by {type(error).__name__}; its message is redelivered") from error


def site_of(app: App, settings: FunctionsSettings | None) -> Site:
    """The site of an application in this process, made with the first settings.

    Raises:
        Refused: it has none yet, or has others.
    """
    known = _sites.get(id(app))
    if known is None:
        if settings is None:
            raise Refused(f"{app.name} has no settings in this process; register its blueprint, or pass settings=")
        known = _sites[id(app)] = Site(app, settings)
    elif settings is not None and settings is not known.settings and settings != known.settings:
        raise Refused(f"{app.name} has other settings in this process already; make them once and pass them everywhere")
    return known


def _source_of(plan: CompiledApp, message: func.ServiceBusMessage) -> str:
    """Where a message of one's own trigger came from, as far as its type tells."""
    if len(plan.sources) == 1:
        return next(iter(plan.sources))
    kind = (message.application_properties or message.user_properties or {}).get("outbox-type")
    found = [path for path, source in plan.sources.items() if kind in source.routes]
    if len(found) != 1:
        raise Refused(
            f"which source is message {message.message_id!r} from? say source=, one of {', '.join(plan.sources)}"
        )
    return found[0]
