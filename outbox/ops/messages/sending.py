"""Send the lines of a stream in batches, one commit a batch, and check messages against the application.

A line is `{"id": ..., "body": ..., ...}`, or with an id field the body itself.  A bad line stops the command; the lines
before it stay sent, and because lines carry their ids, sending the same stream again is safe.

A host has its application, and so has a command with `--app`.  The body is decoded as the handler's message, so that a
mistake is refused with its field rather than dead-lettered later, and the key of a `per_key` queue is taken from it, as
`Client.send` does.  Without a known handler the body is sent as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Callable, Mapping
from io import BufferedReader
from typing import Any

import msgspec

from outbox.app import App
from outbox.codec import Codec
from outbox.errors import OutboxError, Refused
from outbox.message import Message, schema_properties
from outbox.name_checks import shown, taken
from outbox.ops.shared.asking import connected
from outbox.ops.shared.names import listed
from outbox.ops.shared.piped import wait_readable
from outbox.ops.shared.text import compact_json
from outbox.ops.values.messages import NewMessage, Send
from outbox.ops.values.requests import Text

BATCH_COUNT = 500
BATCH_MAX_BYTES = 4 << 20
LINE_MAX_BYTES = 16 << 20
READ_BYTES = 1 << 20


def as_handled(app: App, queue: str, new: NewMessage, *, versions: Mapping[str, int] | None = None) -> NewMessage:
    """Check a message by the application's handlers, and add its key, and its type where there is only one.

    A type that is left out counts as another payload than the one that a client names, so it never is.
    `versions` are the newest registered schema versions of types: a newer type than the code's is not checked.

    Raises:
        Refused: its handlers could not decode it; the text names the field, or the missing option.
    """
    codec = _codec(app, queue, new)
    if codec is not None and _is_only(app, queue, codec, versions):
        new = msgspec.structs.replace(new, type=codec.name)
    if codec is None or (versions or {}).get(codec.name, 1) > codec.version:
        return new
    try:
        message = codec.read(bytes(new.body), codec.version)
    except Exception as error:  # a validator may raise anything
        text = " ".join(str(error).split())  # pydantic's has several lines
        raise Refused(f"message {new.id} does not fit {codec.name}: {text}; nothing was sent") from error
    try:
        key = app.session_of(queue, message, new.key or None)
    except Exception as error:  # a key function may raise anything
        raise Refused(f"message {new.id} has no key: {error}") from error
    if key and new.key and key != new.key:
        raise Refused(f"message {new.id} has the key {key!r}, not {new.key!r}; leave --key out, its handler knows it")
    return msgspec.structs.replace(new, key=key or new.key)


def _is_only(app: App, queue: str, codec: Codec, versions: Mapping[str, int] | None) -> bool:
    """Whether a message of a queue can be of this type alone: other applications may read from a topic."""
    return queue not in app.topics if versions is None else not versions.keys() - {codec.name}


def check_sendable(queue: str, new: NewMessage, types: Mapping[str, int], *, needs_key: bool) -> None:
    """Refuse a message that its queue would not take, or that no handler could tell from another's.

    Raises:
        Refused: its key or its type is missing.
    """
    if needs_key and not new.key:
        raise Refused(f"{queue} is ordered by key and message {new.id} has none; give --key")
    if len(types) > 1 and not new.type:
        raise Refused(f"{queue} takes several types of message; say by --type which: {listed(types)}")


def later_ms(due: float | None, now_ms: int) -> int:
    """When a message is due that is scheduled; 0 for one that is taken now."""
    due_ms = 0 if due is None else round(due * 1_000)
    return due_ms if due_ms > now_ms else 0


def outgoing(new: NewMessage, types: Mapping[str, int], at_ms: int) -> Message:
    """Build a message of its type's newest registered schema; `at_ms` is now, or its due time.

    Without a type it gets the only one that is registered for its queue: with and without it are two payloads.
    """
    type = new.type or (next(iter(types)) if len(types) == 1 else "")
    version = types.get(type, 1)
    return Message(
        body=compact_json(new.id, bytes(new.body)),
        outbox_id=new.id,
        type=type,
        created_ms=at_ms if new.created is None else round(new.created * 1_000),
        correlation_id=new.correlation_id,
        session_id=new.key,
        properties=schema_properties(version),
    )


def _codec(app: App, queue: str, new: NewMessage) -> Codec | None:
    """The codec of a message: of its handlers' types, else of any type with its name; None if unknown."""
    codecs = taken(app, queue)
    if not codecs:
        return next((codec for codec in app.codecs() if codec.name == new.type), None)
    if new.type:
        if new.type not in codecs:
            raise Refused(
                f"no handler of {queue} takes a {new.type[:80]!r}; they take {shown(codecs)}: say which by --type"
            )
        return codecs[new.type]
    if len(codecs) > 1:
        raise Refused(f"{queue} takes several types of message; say by --type which: {shown(codecs)}")
    return next(iter(codecs.values()))


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
