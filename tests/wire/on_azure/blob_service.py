"""Blob Storage as far as the adapters use it, in the test's own loop: what Azure documents, and no more.

For the real SDK, over loopback.  Conditions (If-Match, If-None-Match), ranges, metadata, index tags and listings answer
with the documented statuses and codes; no signature is checked, and there are no leases, snapshots or blocks.  A
listing gives few blobs a page, as Azure may.

    If-None-Match: * where a blob is        409 BlobAlreadyExists
    If-Match that does not hold, or none    412 ConditionNotMet
    no blob, no container                   404 BlobNotFound, ContainerNotFound
    a range behind the end                  416 InvalidRange
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from aiohttp import web

PAGE_COUNT = 2
META = "x-ms-meta-"
WHEN = formatdate(usegmt=True)


@dataclass(slots=True)
class Blob:
    """One blob as it was last written."""

    data: bytes
    etag: str
    metadata: dict[str, str]
    tags: dict[str, str]


@dataclass(slots=True)
class BlobService:
    """The containers of one account, what went wrong on demand, and every request that came."""

    containers: dict[str, dict[str, Blob]] = field(default_factory=dict)
    refusals: deque[tuple[int, str]] = field(default_factory=deque)
    """Status and code of the answers to the next requests, which then do nothing."""
    lost_count: int = 0
    """How many of the next requests take effect and are never answered."""
    before: Callable[[str], None] = lambda _: None
    """Called with every request before it is answered; it may change what is there, as another process would."""
    is_index_behind: bool = False
    """Whether the index still has the tags that blobs have lost: it is consistent in the end only."""
    connection: str = ""
    sent_bytes: int = 0
    """How much of blobs was read."""
    requests: list[str] = field(default_factory=list)
    """Method and name of each, in order."""
    _etags: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _tagged: set[tuple[str, str, str]] = field(default_factory=set)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request, or go wrong."""
        container, name = _split(request.match_info["path"])
        self.requests.append(asked := f"{request.method} {name or container}")
        body = await request.read()
        self.before(asked)
        if self.refusals:
            return _error(*self.refusals.popleft())
        answered = self._container(request, container) if not name else self._blob(request, container, name, body)
        if self.lost_count:
            self.lost_count -= 1
            assert request.transport is not None
            request.transport.abort()
        return answered

    def _container(self, request: web.Request, container: str) -> web.Response:
        held = self.containers.get(container)
        if request.method == "PUT":
            if held is not None:
                return _error(409, "ContainerAlreadyExists")
            self.containers[container] = {}
            return web.Response(status=201, headers={"ETag": '"0x0"', "Last-Modified": WHEN})
        if held is None:
            return _error(404, "ContainerNotFound")
        begins, after = request.query.get("prefix", ""), request.query.get("marker", "")
        if request.query["comp"] == "blobs":
            names = sorted(self._with_tag(container, request.query["where"]))
        else:
            names = sorted(name for name in held if name.startswith(begins))
        left = [name for name in names if name > after]
        marker = left[PAGE_COUNT - 1] if len(left) > PAGE_COUNT else ""
        blobs = "".join(_listed(container, name, held.get(name)) for name in left[:PAGE_COUNT])
        text = (
            f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{escape(marker)}</NextMarker></EnumerationResults>"
        )
        return web.Response(text=text, content_type="application/xml")

    def _with_tag(self, container: str, where: str) -> set[str]:
        """The blobs that the index has for a condition of the form "tag"='value'."""
        tag, _, value = where.replace('"', "").replace("'", "").partition("=")
        now = {name for name, blob in self.containers[container].items() if blob.tags.get(tag) == value}
        self._tagged |= {(container, name, where) for name in now}
        return {n for c, n, w in self._tagged if (c, w) == (container, where)} if self.is_index_behind else now

    def _blob(self, request: web.Request, container: str, name: str, body: bytes) -> web.Response:
        held = self.containers.get(container)
        if held is None:
            return _error(404, "ContainerNotFound")
        found = held.get(name)
        if request.headers.get("If-None-Match") == "*" and found is not None:
            return _error(409, "BlobAlreadyExists")
        wanted = request.headers.get("If-Match")
        holds = wanted is None or (found is not None and wanted in ("*", found.etag))
        if request.method == "PUT":
            if not holds:
                return _error(412, "ConditionNotMet")
            metadata = {n[len(META) :]: v for n, v in request.headers.items() if n.lower().startswith(META)}
            etag = f'"0x{next(self._etags):x}"'
            held[name] = Blob(body, etag, metadata, dict(parse_qsl(request.headers.get("x-ms-tags", ""))))
            return web.Response(status=201, headers={"ETag": etag, "Last-Modified": WHEN})
        if found is None:
            return _error(404, "BlobNotFound")
        if not holds:
            return _error(412, "ConditionNotMet")
        if request.method == "DELETE":
            del held[name]
            return web.Response(status=202)
        return self._read(found, request.headers.get("x-ms-range") or request.headers.get("Range") or "")

    def _read(self, found: Blob, wanted: str) -> web.Response:
        headers = {"ETag": found.etag, "Last-Modified": WHEN, "x-ms-blob-type": "BlockBlob", "Accept-Ranges": "bytes"}
        headers |= {META + name: value for name, value in found.metadata.items()}
        status, data = 200, found.data
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            if int(first) >= len(data):
                return _error(416, "InvalidRange")
            status, data = 206, data[int(first) : int(last or len(data)) + 1]
            headers["Content-Range"] = f"bytes {first}-{int(first) + len(data) - 1}/{len(found.data)}"
        self.sent_bytes += len(data)
        return web.Response(status=status, body=data, headers=headers)


def _split(path: str) -> tuple[str, str]:
    """Container and blob of a path behind the account's name."""
    container, _, name = path.partition("/")[2].partition("/")
    return container, name


def _listed(container: str, name: str, blob: Blob | None) -> str:
    metadata = "" if blob is None else "".join(f"<{n}>{escape(v)}</{n}>" for n, v in blob.metadata.items())
    return (
        f"<Blob><Name>{escape(name)}</Name><ContainerName>{container}</ContainerName><Properties><BlobType>BlockBlob</BlobType></Properties>"
        f"<Metadata>{metadata}</Metadata><Tags><TagSet></TagSet></Tags></Blob>"
    )


def _error(status: int, code: str) -> web.Response:
    text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return web.Response(status=status, text=text, content_type="application/xml", headers={"x-ms-error-code": code})


@asynccontextmanager
async def blob_service() -> AsyncIterator[BlobService]:
    """Serve an account without containers; its connection string is in `connection`."""
    service = BlobService()
    application = web.Application(client_max_size=64 << 20)
    application.router.add_route("*", "/{path:.*}", service.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    service.connection = (
        "DefaultEndpointsProtocol=http;AccountName=account;AccountKey=a2V5;"
        f"BlobEndpoint=http://127.0.0.1:{port}/account;"
    )
    try:
        yield service
    finally:
        await runner.cleanup()
