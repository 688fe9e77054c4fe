"""Documents, messages and commits in a few words, for transcripts.

What a reader needs to follow the protocol is kept: a state's value and version, of a record whether it is pending, what
it sends and why it refuses.  Digests, times of day and whatever else differs or says nothing is left out; a digest that
is an inbox key stands under the id of its message.
"""

from __future__ import annotations

import json
import re
from textwrap import wrap
from typing import Any

import msgspec

from outbox import stored
from outbox.engine_commit import WAITING, WAITING_ATTEMPT
from outbox.message import Message
from outbox.ports import (
    Commit,
    Conflict,
    Create,
    Delete,
    Delivery,
    Document,
    DocumentKey,
    Lost,
    Marker,
    Output,
    Refusal,
    StateChange,
    StateDocument,
    Write,
)
from outbox.runtime.commit.marker_replies import reply_in
from outbox.testing import START_S

TEXT_LENGTH_MAX = 80
"""From here on a text inside a body is cut."""

SPACE = "\u00a0"
"""A space at which no line is broken, as in `etag 1`; on the page it is a space."""

_digests = re.compile(r"[0-9a-f]{64}").sub
_zeros = re.compile(r"\b0{8,}").sub


class Words:
    """Puts into words what the ports are given and return; `names` has the ids that digests were made of."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._etags: dict[DocumentKey, list[str]] = {}

    def name(self, text: str) -> str:
        """An id without digests."""
        return _zeros("", _digests(lambda found: self.names.get(found[0], "..."), text))

    def place(self, key: DocumentKey) -> str:
        """Where a document lies."""
        return self.name(key.id if key.id == key.partition else f"{key.partition}/{key.id}")

    def etag(self, key: DocumentKey, version: str) -> str:
        """An ETag of a document as a number, in the order in which they came up."""
        if not version:
            return ""
        known = self._etags.setdefault(key, [])
        if version not in known:
            known.append(version)
        return f"etag{SPACE}{known.index(version) + 1}"

    # Documents

    def document(self, document: Document | None) -> str:
        """What a read has found."""
        return "none" if document is None else self.found(document.key, document.body, document.version)

    def found(self, key: DocumentKey, body: bytes, version: str) -> str:
        """A document's body, and its ETag."""
        return f"{self.body(key, body)} ({self.etag(key, version)})"

    def body(self, key: DocumentKey, body: bytes) -> str:
        """What a stored body says; of a document that none of the cases knows, its members."""
        kind = key.id.partition(":")[0]
        if kind == "state":
            return self._state(msgspec.json.decode(body, type=stored.StateItem))
        if kind in ("inbox", "done"):
            return self.record(msgspec.json.decode(body, type=stored.Record))
        if kind == "staged":
            staged = msgspec.json.decode(body, type=stored.Staged)
            done = ", dispatched" if staged.dispatched else ""
            return f"over version {staged.version}: {self.record(staged.record)}{done}"
        if kind == "overflow":
            overflow = msgspec.json.decode(body, type=stored.Overflow)
            return f"{self.name(overflow.blob)} may be written, for {self.name(overflow.inbox.hex())}"
        if kind == "claim":
            claim = msgspec.json.decode(body, type=stored.IdempotencyClaim)
            return f"the request stands for {claim.state}"
        return self._members(body)

    def _state(self, item: stored.StateItem) -> str:
        value = "without a value" if item.is_tombstone else brief(bytes(item.value))
        pointer = f", points to {item.pending}" if item.pending else ""
        if isinstance(item.pending, stored.Inline):
            pointer = f"; {self.record(item.pending.record)}"
        return f"version {item.version} {value}{pointer}"

    def record(self, record: stored.Record) -> str:
        """What a record says of its message."""
        if record.reason == WAITING and record.attempt == WAITING_ATTEMPT:
            return f"by {record.tx}, waits"
        parts = [f"by {record.tx}", f"refused {record.reason!r}" if record.reason else ""]
        parts += [f"attempt{SPACE}{record.attempt}" if record.attempt else "", "pending" if record.pending else ""]
        parts += [f"sends {self.output(output)}" for output in record.outputs]
        parts += [f"outputs in {self.name(record.spilled)}" if record.spilled else ""]
        parts += [f"reply {record.reply.status} {brief(record.reply.body)}" if record.reply else ""]
        return ", ".join(part for part in parts if part)

    def _members(self, body: bytes) -> str:
        """The members of a document that has no words of its own, without digests and messages."""
        return brief(msgspec.json.encode(_spans(msgspec.json.decode(body))))

    # Writes

    def write(self, operation: Write) -> str:
        """One operation of a write."""
        tag, place = operation.tag.what or "write", self.place(operation.key)
        if isinstance(operation, Delete):
            return f"{tag}: delete {place} if {self.etag(operation.key, operation.if_match)}"
        body, life = self.body(operation.key, operation.body), f"; {_life(operation.ttl_s)}"
        if operation.key.id == stored.STATE and operation.ttl_s is None:
            life = ""  # as states mostly have none
        if isinstance(operation, Create):
            return f"{tag}: create {place}: {body}{life}"
        return f"{tag}: replace {place} if {self.etag(operation.key, operation.if_match)}: {body}{life}"

    def lost(self, lost: Lost, operations: tuple[Write, ...]) -> str:
        """A write whose condition did not hold."""
        current = "" if lost.current is None else f", which is: {self.document(lost.current)}"
        return f"lost on {self.place(operations[lost.operation].key)}{current}"

    # Messages

    def message(self, message: Message) -> str:
        """A message by its id."""
        attempt = f" attempt{SPACE}{message.attempt}" if message.attempt else ""
        return f"{self.name(message.identity)}{attempt}"

    def delivery(self, delivery: Delivery) -> str:
        """A delivery, and which of its message it is."""
        waits = ", waits behind a blocked key" if delivery.waits else ""
        return f"{self.message(delivery.message)} (delivery{SPACE}{delivery.delivery_count + 1}{waits})"

    def output(self, output: Output) -> str:
        """An output, and where it goes."""
        return f"{self.message(output.message)} to {output.destination}"

    def content(self, message: Message) -> str:
        """A message with its body."""
        return f"{self.message(message)} {message.type} {brief(message.body)}"

    # Engine scope

    def state(self, id: str, found: StateDocument) -> str:
        """A state of engine scope, with its ETag."""
        return f"{id}: {_version(found)} ({self._state_etag(id, found.version)})"

    def _state_etag(self, id: str, version: int) -> str:
        return self.etag(DocumentKey(id, "state"), str(version)) if version else "absent"

    def marker(self, inbox: bytes, marker: Marker) -> str:
        """A marker of engine scope."""
        name = self.name(inbox.hex())
        if not isinstance(marker, Refusal):
            reply = reply_in(marker)
            return f"{name} was applied{f', reply {reply.status} {brief(reply.body)}' if reply else ''}"
        if marker.waits:
            return f"{name} waits"
        return f"{name} was refused {marker.reason!r}{f', attempt{SPACE}{marker.attempt}' if marker.attempt else ''}"

    def commit(self, commit: Commit) -> list[str]:
        """What one commit holds, one thing to a line."""
        life = _life((commit.markers_expire_ms - commit.now_ms) / 1_000 if commit.markers_expire_ms else None)
        markers: dict[bytes, Marker] = {**commit.applied, **commit.refused}
        unchanged = commit.if_versions.keys() - commit.states.keys()
        return [
            *(f"complete {self.message(delivery.message)}" for delivery in commit.consumed),
            *(
                f"dead-letter {self.message(dead_lettering.delivery.message)} {dead_lettering.reason!r}"
                f"{', block its key' if dead_lettering.stops_key else ''}"
                for dead_lettering in commit.dead_lettered
            ),
            *(f"put back {self.message(postponed.delivery.message)}" for postponed in commit.postponed),
            *(
                f"state {id} if {self._state_etag(id, commit.if_versions.get(id, 0))}: {_version(change)}"
                for id, change in commit.states.items()
            ),
            *(f"state {id} if {self._state_etag(id, commit.if_versions[id])}: as it is" for id in sorted(unchanged)),
            *(f"send {self.output(output)}" for output in commit.outputs),
            *(
                f"marker: {self.marker(inbox, marker)}"
                f"{' (replaces a refusal)' if inbox in commit.replacing else ''}; {life}"
                for inbox, marker in markers.items()
            ),
        ]

    def conflict(self, conflict: Conflict) -> str:
        """Which conditions of a commit did not hold."""
        parts = ["a lock is not ours any more" if conflict.locks else ""]
        parts += [f"state {id} has moved" for id in sorted(conflict.states)]
        parts += [f"marker of {self.name(inbox.hex())} is there" for inbox in sorted(conflict.markers)]
        return f"conflict: {', '.join(part for part in parts if part)}"


def _version(state: StateDocument | StateChange) -> str:
    return f"version {state.serial} {brief(state.value) if state.value else 'without a value'}"


def brief(body: bytes) -> str:
    """A JSON body with its long texts cut."""
    try:
        return json.dumps(_cut(msgspec.json.decode(body)), ensure_ascii=False)
    except msgspec.MsgspecError:
        return f"{len(body)} bytes"


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_LENGTH_MAX:
        return f"{value[:3]}... {len(value)} characters"
    if isinstance(value, dict):
        return {name: _cut(member) for name, member in value.items()}
    return [_cut(member) for member in value] if isinstance(value, list) else value


def _spans(value: Any) -> Any:
    """A body with lengths of time for milliseconds; a time of day is how long after the beginning that is."""
    if isinstance(value, list):
        return [_spans(member) for member in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for name, member in value.items():
        if name == "until_ms":
            found["until"] = span(member / 1_000 - START_S)
        elif name.endswith("_ms"):
            found[name.removesuffix("_ms")] = span(member / 1_000)
        elif name not in ("fingerprint", "again") and member:
            found[name] = _spans(member)
    return found


def wrapped(text: str, width: int, margin: str = "") -> list[str]:
    """A text in lines, the later ones behind a margin."""
    lines = wrap(text, width, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False)
    return [line.replace(SPACE, " ") for line in lines]


def _life(seconds: float | None) -> str:
    return "no ttl".replace(" ", SPACE) if seconds is None else f"ttl {span(seconds)}".replace(" ", SPACE)


def span(seconds: float) -> str:
    """A length of time in days, hours, minutes and seconds, as far as there are any."""
    left, parts = round(seconds), []
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length_s)
        parts += [f"{count} {unit}"] if count else []
    return " ".join(parts) or "0 s"
