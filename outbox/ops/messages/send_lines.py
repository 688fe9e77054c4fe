"""Send the lines of a stream in batches, one commit a batch.

A line is `{"id": ..., "body": ..., ...}`, or with an id field the body itself.  A bad line stops the command; the lines
before it stay sent, and because lines carry their ids, sending the same stream again is safe.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable
from io import BufferedReader
from typing import Any

import msgspec

from outbox.errors import OutboxError, Refused
from outbox.ops.shared.asking import connected
from outbox.ops.shared.piped import wait_readable
from outbox.ops.values.messages import NewMessage, Send
from outbox.ops.values.requests import Text

BATCH_COUNT = 500
BATCH_MAX_BYTES = 4 << 20
LINE_MAX_BYTES = 16 << 20
READ_BYTES = 1 << 20


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An enveloped message; the command's options are its defaults."""

    id: str | int
    body: msgspec.Raw
    type: Text | None = None
    created: float | None = None
    key: str | int | None = None
    correlation_id: Text | None = None


Check = Callable[[NewMessage], NewMessage]


async def send_lines(
    options: argparse.Namespace, stream: BufferedReader, check: Check, *, due: float | None = None
) -> dict[str, Any]:
    """Send every line as `check` returns it, scheduled if they are `due` later; the answer of the command.

    Raises:
        Refused: a line cannot be sent; the text names it and counts those sent before.
    """
    ids: list[str] = []
    async with connected(options) as admin:
        try:
            async for batch in _batches(_messages(stream, options, check)):
                await admin.ask(Send(options.queue, batch, due=due))
                ids += [message.id for message in batch]
        except OutboxError as error:
            if not ids:
                raise
            were = "1 message was" if len(ids) == 1 else f"{len(ids)} messages were"
            raise Refused(f"{error}; {were} sent before; send all again under their ids") from error
    return {"queue": options.queue, "count": len(ids), "ids": ids}


async def _messages(
    stream: BufferedReader, options: argparse.Namespace, check: Check
) -> AsyncIterator[list[NewMessage]]:
    """The messages of one read's lines; those before a bad line are yielded before its error."""
    number = 0
    async for lines in _lines(stream):
        found: list[NewMessage] = []
        try:
            for line in lines:
                number += 1
                if line.strip():
                    found.append(check(_plain(line, options) if options.id_field else _enveloped(line, options)))
        except Refused as refusal:
            yield found
            raise Refused(f"line {number}: {refusal}") from refusal
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            yield found
            hint = '; a line is {"id": ..., "body": ...}, or give --id-field for plain bodies'
            raise Refused(f"line {number}: {error}{'' if options.id_field else hint}") from error
        yield found


async def _lines(stream: BufferedReader) -> AsyncIterator[list[bytes]]:
    rest = b""
    while True:
        await wait_readable(stream)
        piece = stream.read1(READ_BYTES)
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > LINE_MAX_BYTES:
            raise Refused(f"a line is over {LINE_MAX_BYTES} bytes; put large values into a blob")
        if not piece:
            yield [rest]
            return
        yield lines


def _enveloped(line: bytes, options: argparse.Namespace) -> NewMessage:
    found = msgspec.json.decode(line, type=_Line)
    msgspec.json.decode(found.body)  # refused here, with the line's number
    return _checked(
        id=str(found.id),
        body=found.body,
        type=options.type if found.type is None else found.type,
        created=options.created if found.created is None else found.created,
        key=options.key if found.key is None else str(found.key),
        correlation_id=options.correlation_id if found.correlation_id is None else found.correlation_id,
    )


def _plain(line: bytes, options: argparse.Namespace) -> NewMessage:
    body = msgspec.json.decode(line)
    if not isinstance(body, dict):
        raise ValueError("the body is not an object, so it has no field to take the id from")
    return _checked(
        id=_field(body, options.id_field),
        body=msgspec.Raw(line.strip()),
        type=options.type,
        created=options.created,
        key=_field(body, options.key_field) if options.key_field else options.key,
        correlation_id=options.correlation_id,
    )


def _field(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ValueError(f"field {name!r} is {'missing' if value is None else 'not a text or an integer'}")
    return str(value)


def _checked(**fields: Any) -> NewMessage:
    """A message within the host's limits."""
    return msgspec.convert(fields, NewMessage)


async def _batches(messages: AsyncIterator[list[NewMessage]]) -> AsyncIterator[list[NewMessage]]:
    """Batches within the limits; lines that have arrived never wait for later ones."""
    async for found in messages:
        batch: list[NewMessage] = []
        size_bytes = 0
        for message in found:
            batch.append(message)
            size_bytes += len(bytes(message.body))
            if len(batch) >= BATCH_COUNT or size_bytes >= BATCH_MAX_BYTES:
                yield batch
                batch, size_bytes = [], 0
        if batch:
            yield batch
