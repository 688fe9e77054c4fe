"""Blob Batch: up to 256 deletes in one request, each answered for itself.

*Theory of operation.*  The body is multipart/mixed; each part is a request of its own, with a signature of its own, on
a blob of the account or of the container that the batch is sent to.  All parts are read before the first is done: a
body that cannot be read whole, asks for something else than deletes or has too many parts does nothing, and is answered
by one part without a number.  What reads it is strict (CRLF, no preamble, no folded lines), because the SDKs are.
Source: learn.microsoft.com/rest/api/storageservices/blob-batch; the code of too many parts is that which Microsoft's
recorded tests of the .NET SDK want, its place in a part is theirs and Azurite's.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from http.client import responses
from typing import NamedTuple

from outbox.emulator.blobs.auth import Signatures
from outbox.emulator.blobs.gateway import Usage, broken
from outbox.emulator.blobs.requests import ACCEPTED, Answer, Call, Rejection, bad_header, check_understood, read_line
from outbox.emulator.faults import Faults, Meter

BATCH_COUNT_MAX = 256
BATCH_MAX_BYTES = 4 << 20
HEADER_COUNT_MAX = 40
LINE_LENGTH_MAX = 8_192
FAULTS = frozenset(("refused", "throttled", "status"))
"""The faults that may happen to a part; the others happen to the batch."""
BOUNDARY = "batchresponse_00000000-0000-0000-0000-000000000000"
_BOUNDARY = re.compile(r"multipart/mixed\s*;\s*boundary=(?:\"([^\"]+)\"|([^\s;\"]+))\s*", re.IGNORECASE)
_BOUNDARY_TEXT = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_ABOUT = (
    (
        "content-type",
        re.compile("application/http", re.IGNORECASE),
        "a part of a batch is of Content-Type: application/http",
    ),
    (
        "content-transfer-encoding",
        re.compile("binary", re.IGNORECASE),
        "a part of a batch has Content-Transfer-Encoding: binary",
    ),
    (
        "content-id",
        re.compile(r"[\x21-\x7e]{0,80}"),
        "a Content-ID has 1 to 80 characters of ASCII without blanks",
    ),
)
"""Headers of a part itself, and how each must read."""
_LINE = re.compile(r"([A-Z]{1,20}) (/[\x21-\x7e]*) HTTP/1\.1")


class Part(NamedTuple):
    """One request of a batch: what its `Content-ID` says, its first line and its headers, in lower case."""

    id: str
    method: str
    raw_path: str
    headers: dict[str, str]


class BatchOperations:
    """Does what the parts of a batch ask for."""

    def __init__(
        self,
        delete: Callable[[Call], Awaitable[Answer]],
        signatures: Signatures,
        now_ms: Callable[[], int],
        faults: Faults,
        meter: Meter[Usage],
    ) -> None:
        self._delete = delete
        self._signatures = signatures
        self._now_ms = now_ms
        self._faults = faults
        self._meter = meter

    async def submit(self, call: Call) -> Answer:
        """Blob Batch: an answer of 202, whatever became of its parts."""
        if len(call.body) > BATCH_MAX_BYTES:
            raise Rejection("RequestBodyTooLarge", f"a batch has {BATCH_MAX_BYTES} bytes at most")
        boundary = read_boundary(call.header("content-type"))
        try:
            asked = [(part.id, self._routed(call, part)) for part in read_parts(call.body, boundary)]
        except Rejection as rejected:
            return _whole([_shown("", rejected.answer())])
        return _whole([_shown(id, await self._answered(each)) for id, each in asked])

    def _routed(self, batch: Call, part: Part) -> Call:
        """The call that a part is.

        Raises:
            Rejection: 400, it is no delete of a blob within the batch's place.
        """
        call = Call(part.method, part.raw_path, part.headers)
        read_line(call, self._signatures.account)
        if call.route.operation != "blob.delete":
            raise Rejection("InvalidInput", "the parts of a batch are deletes of blobs; others are not supported here")
        if batch.route.container not in ("", call.route.container):
            raise Rejection("InvalidInput", f"the parts of this batch are about blobs of {batch.route.container}")
        return call

    async def _answered(self, call: Call) -> Answer:
        try:
            self._signatures.check(call.method, call.raw_path, call.headers)
            check_understood(call, self._now_ms())
            route, client = call.route, call.header("user-agent")
            rule = self._faults.ask(route.operation, kinds=FAULTS, where=route.container, key=route.blob, client=client)
            if rule is not None:
                raise broken(rule)
            answer = await self._delete(call)
        except Rejection as rejected:
            answer = rejected.answer()
        self._meter.count(call.route.operation, answer.status, received_bytes=0, sent_bytes=len(answer.body))
        return answer


def read_boundary(content_type: str) -> bytes:
    """Read the boundary between the parts of a batch.

    Raises:
        Rejection: 400.
    """
    found = _BOUNDARY.fullmatch(content_type)
    text = (found[1] or found[2]) if found else ""
    if not _BOUNDARY_TEXT.fullmatch(text):
        raise bad_header("Content-Type", "a batch is multipart/mixed with a boundary of at most 70 characters")
    return text.encode()


def read_parts(body: bytes, boundary: bytes) -> list[Part]:
    """The requests of a batch, in order.

    Raises:
        Rejection: 400, there are none or too many, or one cannot be read.
    """
    delimiter = b"\r\n--" + boundary
    pieces = (b"\r\n" + body).split(delimiter, BATCH_COUNT_MAX + 2)
    first, *parts, last = pieces if len(pieces) > 1 else (b"x", b"")
    if len(parts) > BATCH_COUNT_MAX:
        raise Rejection("ExceedsMaxBatchRequestCount")
    if first.strip() or not parts or last not in (b"--", b"--\r\n"):
        raise Rejection(
            "InvalidInput", "a batch begins with its boundary, has parts, and ends with the boundary and --"
        )
    found = [_part(part) for part in parts]
    ids = [part.id for part in found if part.id]
    if len(set(ids)) != len(ids):
        raise Rejection("InvalidInput", "two parts of the batch have one Content-ID")
    return found


def _part(data: bytes) -> Part:
    if not data.startswith(b"\r\n"):
        raise Rejection("InvalidInput", "behind a boundary stands the end of its line")
    head, _, inner = data[2:].partition(b"\r\n\r\n")
    about = _headers(head)
    for name, right, text in _ABOUT:
        if not right.fullmatch(about.get(name, "")):
            raise Rejection("InvalidInput", text)
    line, _, rest = inner.partition(b"\r\n")
    asked = _LINE.fullmatch(line[:LINE_LENGTH_MAX].decode("latin-1"))
    head, _, body = rest.partition(b"\r\n\r\n")
    if asked is None or body.strip():
        raise Rejection(
            "InvalidInput", "a part of a batch is the head of a request: METHOD /path HTTP/1.1, and headers"
        )
    headers = _headers(head)
    if headers.get("content-length", "0") != "0":
        raise Rejection("InvalidInput", "a part of a batch has no body; say Content-Length: 0")
    return Part(about.get("content-id", ""), asked[1], asked[2], headers)


def _headers(head: bytes) -> dict[str, str]:
    """Headers by name in lower case.

    Raises:
        Rejection: 400, a line is none, one is there twice, or there are too many.
    """
    lines = head.strip(b"\r\n").split(b"\r\n", HEADER_COUNT_MAX) if head.strip(b"\r\n") else []
    found = {}
    for line in lines[:HEADER_COUNT_MAX]:
        name, colon, value = line.decode("utf-8", "surrogateescape").partition(":")
        is_header = colon and name.isascii() and name.isprintable() and name == name.strip() and "\r" not in value
        if not is_header or "\n" in value or len(line) > LINE_LENGTH_MAX or name.lower() in found:
            raise Rejection("InvalidInput", f"a header of a part cannot be read: {name[:40]!r}")
        found[name.lower()] = value.strip()
    if len(lines) > HEADER_COUNT_MAX:
        raise Rejection("InvalidInput", f"a part of a batch has {HEADER_COUNT_MAX} headers at most")
    return found


def _shown(id: str, answer: Answer) -> bytes:
    """An answer as a part."""
    body = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
    about = ["Content-Type: application/http", *([f"Content-ID: {id}"] if id else [])]
    fields = answer.headers | ({"Content-Length": str(len(body))} if body else {})
    lines = [*about, "", f"HTTP/1.1 {answer.status} {responses.get(answer.status, 'Answer')}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join((*lines, "", "")).encode() + body


def _whole(parts: list[bytes]) -> Answer:
    separator = f"--{BOUNDARY}\r\n".encode()
    body = b"".join(separator + part + b"\r\n" for part in parts) + f"--{BOUNDARY}--\r\n".encode()
    return Answer(ACCEPTED, {"Content-Type": f"multipart/mixed; boundary={BOUNDARY}"}, body)
