"""The admin of a running host, over its control endpoint.

It uses the standard library's client in a thread, which imports in a tenth of aiohttp's time; a command makes one
request at a time.  No request is repeated: after a lost response it may have taken effect, and the error says so.
"""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from outbox import errors
from outbox.errors import OutboxError, OutcomeUnknown, Refused
from outbox.ops.shared.control_file import ControlFile
from outbox.ops.values.requests import A, Admin, Lines, Read, Request, answer_of
from outbox.ops.values.status import Check

ANSWER_WITHIN_S = 60.0
HEALTH_WITHIN_S = 2.0
ANSWER_MAX_BYTES = 256 << 20
PIECE_BYTES = 64 << 10


class _Error(msgspec.Struct):
    kind: str
    error: str


class RemoteAdmin:
    """An admin over HTTP."""

    def __init__(self, host: ControlFile, folder: Path) -> None:
        self._host = host
        self._folder = folder

    async def ask(self, asked: Request[A]) -> A:
        data = await asyncio.to_thread(self._ask, asked)
        try:
            found: A = msgspec.json.decode(data, type=answer_of(type(asked)))
        except msgspec.DecodeError as error:
            raise OutboxError(
                f"{self._folder}: the host responds in a format of another version; run both from one"
            ) from error
        return found

    async def stream(self, asked: Lines) -> AsyncIterator[bytes]:
        what = "export" if type(asked).__name__ in ("Export", "ReadStates") else "read"
        connection = self._connection(ANSWER_WITHIN_S)
        try:
            response = await asyncio.to_thread(self._response, connection, asked)
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

    def _ask(self, asked: Request[A]) -> bytes:
        connection = self._connection(HEALTH_WITHIN_S if isinstance(asked, Check) else ANSWER_WITHIN_S)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise Refused(f"{self._folder}: the host ({self._host.where}) does not answer: {error}") from error
            try:
                response = self._response(connection, asked)
                data = response.read(ANSWER_MAX_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise self._lost(asked, error) from error
        finally:
            connection.close()
        if response.status != 200:
            raise self._refused(data)
        return data

    def _connection(self, within_s: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._host.port, timeout=within_s)

    def _response(self, connection: http.client.HTTPConnection, asked: Request[A] | Lines) -> http.client.HTTPResponse:
        try:
            body = msgspec.json.encode(asked)
        except UnicodeEncodeError as error:
            raise Refused(f"what is asked is not text ({error}); check it") from error
        headers = {"Authorization": f"Bearer {self._host.token}", "Content-Type": "application/json"}
        connection.request("POST", f"/ask/{type(asked).__name__}", body=body, headers=headers)
        return connection.getresponse()

    def _lost(self, asked: Request[A], error: Exception) -> OutboxError:
        if isinstance(asked, Read):
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


_conforms: type[Admin] = RemoteAdmin
