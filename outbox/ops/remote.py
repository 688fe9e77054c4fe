"""The operator of a running host, over its control endpoint.

It uses the standard library's client in a thread, which imports in a tenth of aiohttp's time; a command makes one
request at a time.  No request is repeated: after a lost response it may have taken effect, and the error says so.
"""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET

from outbox import errors
from outbox.errors import OutboxError, OutcomeUnknown, Refused
from outbox.ops.control_file import ControlFile
from outbox.ops.operator import Operator
from outbox.ops.pending_values import FinishRequest, PendingFinished, PendingView
from outbox.ops.state_values import StateWrites, StateWritten
from outbox.ops.stream_values import (
    StreamQuery,
    Streams,
    StreamTrimmed,
    StreamUnregistered,
    TrimRequest,
    UnregisterRequest,
)
from outbox.ops.trail_values import Trail, TrailQuery
from outbox.ops.values import (
    ANY_DEAD_LETTER,
    BATCH_COUNT_MAX,
    AmongQuery,
    BlockedPage,
    BlockedQuery,
    CancelRequest,
    Compacted,
    DeadAttempt,
    DeadLetterFilter,
    DeadLetterView,
    DiscardRequest,
    DiscardSomeRequest,
    FindQuery,
    FoundMessage,
    KeyKind,
    Moved,
    MoveRequest,
    NewMessage,
    Paused,
    PauseRequest,
    Peeked,
    PeekQuery,
    ResubmitRequest,
    Sealed,
    SendRequest,
    Signs,
    Status,
)

ANSWER_WITHIN_S = 60.0
HEALTH_WITHIN_S = 2.0
ANSWER_MAX_BYTES = 256 << 20
PIECE_BYTES = 64 << 10

T = TypeVar("T")


class _Error(msgspec.Struct):
    kind: str
    error: str


class _State(msgspec.Struct):
    state: msgspec.Raw


class RemoteOperator:
    """An operator over HTTP."""

    def __init__(self, host: ControlFile, folder: Path) -> None:
        self._host = host
        self._folder = folder

    async def check(self) -> None:
        await asyncio.to_thread(self._ask, "GET", "/health", None, HEALTH_WITHIN_S)

    async def send(self, queue: str, messages: Sequence[NewMessage], *, due: float | None = None) -> None:
        await self._post("/send", SendRequest(queue, list(messages), due), dict)

    async def status(self) -> Status:
        return await self._get("/status", {}, Status)

    async def signs(self) -> Signs:
        return await self._get("/signs", {}, Signs)

    async def metrics(self) -> str:
        return b"".join([piece async for piece in self._pieces("/metrics", "read")]).decode()

    async def state(self, type: str, key: str, kind: KeyKind = "text") -> bytes | None:
        found = bytes((await self._get("/state", {"type": type, "key": key, "kind": kind}, _State)).state)
        return None if found == b"null" else found

    def export(self, type: str = "") -> AsyncIterator[bytes]:
        return self._pieces(f"/export?{urlencode({'type': type})}", "export")

    def states(self, type: str = "") -> AsyncIterator[bytes]:
        return self._pieces(f"/states?{urlencode({'type': type})}", "export")

    async def write_states(self, asked: StateWrites) -> list[StateWritten]:
        return await self._post("/states/write", asked, list[StateWritten])

    async def _pieces(self, path: str, what: str) -> AsyncIterator[bytes]:
        """An answer as it comes."""
        connection = self._connection(ANSWER_WITHIN_S)
        try:
            response = await asyncio.to_thread(self._response, connection, "GET", path)
            if response.status != 200:
                raise self._refused(response.read(PIECE_BYTES))
            while piece := await asyncio.to_thread(response.read, PIECE_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise Refused(
                f"{self._folder}: the host ({self._host.where}) broke off the {what} ({error!r}); {what} again"
            ) from error
        finally:
            connection.close()

    async def peek(self, asked: PeekQuery) -> Peeked:
        return await self._get("/messages", msgspec.structs.asdict(asked), Peeked)

    async def find(self, asked: FindQuery) -> list[FoundMessage]:
        return await self._get("/message", msgspec.structs.asdict(asked), list[FoundMessage])

    async def trail(self, asked: TrailQuery) -> Trail:
        return await self._ask_for("/message/trail", asked, Trail)

    async def cancel(self, queue: str, id: str, *, after: int = 0) -> Moved:
        return await self._post("/schedule/cancel", CancelRequest(queue, id, after), Moved)

    async def make_due(self, queue: str, id: str, *, after: int = 0) -> Moved:
        return await self._post("/schedule/now", CancelRequest(queue, id, after), Moved)

    async def pending(self) -> list[PendingView]:
        return await self._get("/pending", {}, list[PendingView])

    async def finish(self, tx: str | None) -> PendingFinished:
        return await self._post("/pending/finish", FinishRequest(tx), PendingFinished)

    async def dead_letters(
        self,
        queue: str,
        *,
        after: int = 0,
        count_max: int = BATCH_COUNT_MAX,
        where: DeadLetterFilter = ANY_DEAD_LETTER,
    ) -> list[DeadLetterView]:
        asked = {"queue": queue, "after": after, "count": count_max, **msgspec.structs.asdict(where)}
        return await self._get("/dead-letters", asked, list[DeadLetterView])

    async def dead_among(self, queue: str, ids: Sequence[str]) -> dict[str, list[DeadAttempt]]:
        return await self._ask_for("/dead-letters/among", AmongQuery(queue, list(ids)), dict[str, list[DeadAttempt]])

    async def dead_letter(self, queue: str, id: str, *, sequence: int = 0) -> DeadLetterView:
        return await self._get("/dead-letter", {"queue": queue, "id": id, "sequence": sequence}, DeadLetterView)

    async def resubmit(self, queue: str, id: str | None, *, body: bytes | None = None, sequence: int = 0) -> Moved:
        edited = UNSET if body is None else msgspec.Raw(body)
        return await self._post("/dead-letters/resubmit", ResubmitRequest(queue, id, edited, sequence), Moved)

    async def discard(self, queue: str, id: str | None, *, for_good: bool = False, sequence: int = 0) -> Moved:
        return await self._post("/dead-letters/discard", DiscardRequest(queue, id, for_good, sequence), Moved)

    async def discard_some(self, queue: str, sequences: Sequence[int], *, for_good: bool = False) -> Moved:
        return await self._post(
            "/dead-letters/discard-some", DiscardSomeRequest(queue, list(sequences), for_good), Moved
        )

    async def discarded(self, queue: str) -> list[DeadLetterView]:
        return await self._get("/dead-letters/discarded", {"queue": queue}, list[DeadLetterView])

    async def restore(self, queue: str, id: str | None) -> Moved:
        return await self._post("/dead-letters/restore", MoveRequest(queue, id), Moved)

    async def blocked(self, asked: BlockedQuery) -> BlockedPage:
        return await self._ask_for("/blocked", asked, BlockedPage)

    async def pause(self, asked: PauseRequest) -> Paused:
        return await self._post("/queue/pause", asked, Paused)

    async def streams(self) -> Streams:
        return await self._get("/streams", {}, Streams)

    def stream(self, asked: StreamQuery) -> AsyncIterator[bytes]:
        return self._pieces(f"/stream?{urlencode(msgspec.structs.asdict(asked))}", "read")

    async def unregister_stream(self, asked: UnregisterRequest) -> StreamUnregistered:
        return await self._post("/stream/unregister", asked, StreamUnregistered)

    async def trim_stream(self, asked: TrimRequest) -> StreamTrimmed:
        return await self._post("/stream/trim", asked, StreamTrimmed)

    async def compact(self) -> Compacted:
        return await self._post("/compact", None, Compacted)

    async def seal(self) -> int:
        return (await self._post("/seal", None, Sealed)).ordinal

    # HTTP

    async def _get(self, path: str, query: dict[str, Any], kind: type[T]) -> T:
        return self._decoded(await asyncio.to_thread(self._ask, "GET", f"{path}?{urlencode(query)}", None), kind)

    async def _ask_for(self, path: str, value: Any, kind: type[T]) -> T:
        """The answer to a question that does not fit into a query; asking changes nothing."""
        body = msgspec.json.encode(value)
        return self._decoded(await asyncio.to_thread(self._ask, "POST", path, body, is_question=True), kind)

    async def _post(self, path: str, value: Any, kind: type[T]) -> T:
        body = b"" if value is None else msgspec.json.encode(value)
        return self._decoded(await asyncio.to_thread(self._ask, "POST", path, body), kind)

    def _decoded(self, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise OutboxError(
                f"{self._folder}: the host responds in a format of another version; run both from one"
            ) from error

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        within_s: float = ANSWER_WITHIN_S,
        *,
        is_question: bool = False,
    ) -> bytes:
        connection = self._connection(within_s)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise Refused(f"{self._folder}: the host ({self._host.where}) does not answer: {error}") from error
            try:
                response = self._response(connection, method, path, body)
                data = response.read(ANSWER_MAX_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise self._lost("GET" if is_question else method, error) from error
        finally:
            connection.close()
        if response.status != 200:
            raise self._refused(data)
        return data

    def _connection(self, within_s: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._host.port, timeout=within_s)

    def _response(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self._host.token}", "Content-Type": "application/json"}
        connection.request(method, path, body=body, headers=headers)
        return connection.getresponse()

    def _lost(self, method: str, error: Exception) -> OutboxError:
        if method == "GET":
            return Refused(
                f"{self._folder}: the host ({self._host.where}) went away ({error!r}); run the command again"
            )
        return OutcomeUnknown(
            f"{self._folder}: the host's answer was lost ({error!r}), so this may have been done; look at the status, "
            "and send again under the same id only"
        )

    def _refused(self, data: bytes) -> Exception:
        """The host's error, as its own class if that is one of `outbox.errors`."""
        try:
            found = msgspec.json.decode(data, type=_Error)
        except msgspec.DecodeError:
            return Refused(f"{self._folder}: the host refused: {data[:200]!r}")
        if found.kind in ("LookupError", "KeyError"):
            return LookupError(found.error)
        kind = getattr(errors, found.kind, Refused)
        is_ours = isinstance(kind, type) and issubclass(kind, OutboxError) and kind is not errors.PoisonMessage
        return kind(found.error) if is_ours else Refused(found.error)


_conforms: type[Operator] = RemoteOperator
