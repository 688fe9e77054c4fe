"""Turn HTTP requests into messages: body, path and headers, or the problem to respond with.

The identity is the idempotency key, with a digest of the caller where the entry declares `caller=`.  The inbox key is
computed without the state's key: the record is read before the request's state is known, and a request for another
state under the same idempotency key has another payload, which is refused.

The fingerprint is the digest of the JSON document with the path's parameters in it, in canonical order and without
white space, its numbers as sent.  It does not depend on the types of the body's members, so that a repetition after a
deploy is the same request.  A number stays the text that was sent, because only the message's type knows its precision:
as a float, 12345678901234567.89 would reach a Decimal as 12345678901234568.  So 1.0 and 1.00 are different bodies, as
they are different decimals; the order of members, white space and escapes make no difference.

Refused here, whatever the message's type: invalid JSON, a repeated member, a number beyond floats or Python's integers.
"""

from __future__ import annotations

import json
import logging
import re
import typing
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from inspect import isawaitable
from math import isinf
from typing import Any, NoReturn

import msgspec

from outbox.app import App, HttpRoute
from outbox.codec import DECODE_ERRORS, Codec
from outbox.encoding import encoded_plain
from outbox.errors import PoisonMessage
from outbox.escape import printable
from outbox.http import JSON, Request, Unfit, idempotency_key
from outbox.lineage import as_key, fingerprint, inbox_key, state_id
from outbox.message import Message
from outbox.ports import Delivery
from outbox.retries import Reject
from outbox.runtime.failures.error_text import FAILURES, as_text, failure_text, raised_at, safe_text
from outbox.runtime.work import Work

log = logging.getLogger("outbox.http")

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
DIGIT_COUNT_MAX = 4_300
"""How long a number may be as text: as Python's own integers."""


class OwnTypeError(Exception):
    """A field's type that only its own model decodes, from the text."""


@dataclass(frozen=True)
class Reader:
    """Turns the requests to one route into works."""

    app: App
    route: HttpRoute

    async def caller(self, request: Request) -> str:
        """The caller of a request by the entry's `caller=`; empty without one.

        Raises:
            Unfit: the caller is refused, or cannot be determined.
        """
        if self.route.caller is None:
            return ""
        try:
            found: Any = self.route.caller(request)
            caller = await found if isawaitable(found) else found
            if not isinstance(caller, str):
                raise TypeError(f"caller= gave a {type(caller).__name__}; return a text, or raise Reject")
        except Reject as refusal:
            raise Unfit(403, "forbidden", safe_text(as_text(refusal)) or "this caller may not do that") from refusal
        except Exception as error:
            fields = {"route": self.route.name, "line": raised_at(error)}
            log.error("caller= failed, request answered 500", extra={**fields, "error": printable(failure_text(error))})
            raise Unfit(500, "failed", "the caller could not be determined; nothing took effect") from error
        try:
            caller.encode()
        except UnicodeEncodeError as error:  # of a header's byte that is not UTF-8
            raise Unfit(400, "undecodable", "the caller's name is not text; send it as UTF-8") from error
        return caller

    def work(self, request: Request, parameters: Mapping[str, str], caller: str, now_ms: int) -> Work:
        """The work of a request that may change something.

        Raises:
            Unfit: the request cannot become a message.
        """
        key = idempotency_key(request.headers)
        identity = f"{key}@{sha256(caller.encode()).hexdigest()}" if self.route.caller is not None else key
        body, whole = self._written(request, parameters)
        message = Message(
            body=body,
            outbox_id=identity,
            type=self._codec.name,
            created_ms=now_ms,
            traceparent=_traceparent(request),
        )
        work, inbox = self._work(message, caller, now_ms), inbox_key(self.route.handler.prefix, None, identity)
        return msgspec.structs.replace(work, inbox=inbox, fingerprint=fingerprint(whole, ""), remembered=True)

    def read_work(self, request: Request, parameters: Mapping[str, str], caller: str, now_ms: int) -> Work:
        """The work of a read: its message is the query and the path.

        Raises:
            Unfit: the request cannot become a message.
        """
        try:
            given = request.parameters()
        except ValueError as error:
            raise Unfit(400, "undecodable", safe_text(f"the query cannot be read: {error}")) from error
        named = {name: text for name, text in given.items() if name in self._names}
        body = msgspec.json.encode(self._typed({**named, **parameters}))
        message = Message(body=body, type=self._codec.name, created_ms=now_ms, traceparent=_traceparent(request))
        return self._work(message, caller, now_ms)

    def _work(self, message: Message, caller: str, now_ms: int) -> Work:
        """The work of a message: value decoded, key taken."""
        handler = self.route.handler
        delivery = Delivery(handler.source, 0, message, 0, now_ms, 0)
        try:
            value = self._codec.decode(message.body)
        except FAILURES as error:  # a validator may raise anything
            raise Unfit(400, "undecodable", safe_text(f"does not fit {self._codec.name}: {as_text(error)}")) from error
        if handler.key is None:
            return Work(delivery, handler, value, caller=caller)
        try:
            key = as_key(handler.key(value))
            id = None if handler.state is None else state_id(handler.state.name, key)
        except FAILURES as error:  # the key function's own, or half of a surrogate pair in a key
            raise Unfit(400, "missing-key", safe_text(f"the request names no key; {as_text(error)}")) from error
        return Work(delivery, handler, value, key, id, id, caller=caller)

    # The message

    def _written(self, request: Request, parameters: Mapping[str, str]) -> tuple[bytes, bytes]:
        """The body to decode, and its canonical form for the fingerprint, with the path's parameters."""
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind != JSON and not kind.endswith("+json"):
            raise Unfit(415, "not-json", f"send the body as {JSON}")
        try:
            given = read_body(request.body or b"{}")
            if parameters:
                given = self._with_path(given, parameters)
            whole = write_body(given)
        except DECODE_ERRORS as error:
            raise Unfit(400, "undecodable", safe_text(f"the body is not JSON: {error}")) from error
        return (whole if parameters or not request.body else request.body), whole

    def _with_path(self, given: Any, parameters: Mapping[str, str]) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise Unfit(400, "undecodable", "the body must be a JSON object")
        typed = self._typed(parameters)
        for field, name in self._names.items():
            if name in given and name in typed and not self._says(field, given[name], typed[name]):
                raise Unfit(400, "path-differs", f"{name} is another in the body than in the path; send one of them")
        return {**given, **typed}

    def _says(self, field: str, given: Any, typed: Any) -> bool:
        """Whether body and path agree on a member; by the field's type 3.0 may equal 3."""
        one, other = write_body(given), write_body(typed)
        if one == other:
            return True
        kind = self._hints.get(field, str)
        try:
            return bool(msgspec.json.decode(one, type=kind) == msgspec.json.decode(other, type=kind))
        except (*DECODE_ERRORS, TypeError):  # not of that type, or a type that only its own model decodes
            return False

    def _typed(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Convert texts to their fields' types, under the fields' wire names."""
        typed: dict[str, Any] = {}
        for name, text in parameters.items():
            try:
                value = msgspec.convert(text, self._hints.get(name, str), strict=False, dec_hook=_leave)
                encoded_plain(value)  # `nan` is a float's text, and no number of a message
                typed[self._names[name]] = msgspec.to_builtins(value)
            except (msgspec.ValidationError, PoisonMessage) as error:
                raise Unfit(400, "undecodable", safe_text(f"{name}: {error}")) from error
            except (TypeError, OwnTypeError):
                typed[self._names[name]] = text
        return typed

    @cached_property
    def _codec(self) -> Codec:
        return self.app.codec(self.route.handler.binding.messages[0])

    @cached_property
    def _names(self) -> dict[str, str]:
        """The wire name of each field."""
        kind = self._codec.type
        names = {name: name for name in self._codec.fields}
        if issubclass(kind, msgspec.Struct):
            names.update(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
        for name, field in getattr(kind, "model_fields", {}).items():
            names[name] = getattr(field, "alias", None) or name
        return names

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self._codec.type)
        except Exception:  # an annotation may be any expression; then all are texts
            return {}


def _leave(kind: Any, value: object) -> NoReturn:
    raise OwnTypeError


def _traceparent(request: Request) -> str:
    text = request.headers.get("traceparent", "")
    return text if _TRACEPARENT(text) else ""


def read_body(body: bytes) -> Any:
    """A document's values, each number as a `msgspec.Raw` of its text.

    Raises:
        ValueError: it is not JSON, a member is repeated, or a number is out of range.
        RecursionError: it is nested too deeply.
    """
    return _DECODER.decode(body.decode())


def write_body(document: Any) -> bytes:
    """Encode a document in canonical order.

    Raises:
        ValueError: a text in it is half of a surrogate pair.
        RecursionError: it is nested too deeply.
    """
    return msgspec.json.encode(document, order="sorted")


def _integer(text: str) -> msgspec.Raw:
    if len(text) > DIGIT_COUNT_MAX:
        raise ValueError(f"a number of {len(text)} digits is out of range")
    return msgspec.Raw(text)


def _fraction(text: str) -> msgspec.Raw:
    if len(text) > DIGIT_COUNT_MAX or isinf(float(text)):
        raise ValueError(f"number out of range: {text[:40]}")
    return msgspec.Raw(text)


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"member {twice[:40]!r} is there twice; send it once")
    return members


_DECODER = json.JSONDecoder(
    parse_int=_integer, parse_float=_fraction, parse_constant=_constant, object_pairs_hook=_members
)
