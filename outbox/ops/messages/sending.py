"""Check a message sent by an operator against the application that will handle it.

A host has its application, and so has a command with `--app`.  The body is decoded as the handler's message, so that a
mistake is refused with its field rather than dead-lettered later, and the key of a `per_key` queue is taken from it, as
`Client.send` does.  Without a known handler the body is sent as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from outbox.app import App
from outbox.codec import Codec
from outbox.errors import Refused
from outbox.message import Message, schema_properties
from outbox.name_checks import shown, taken
from outbox.ops.shared.names import listed
from outbox.ops.shared.text import compact_json
from outbox.ops.values.messages import NewMessage


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
