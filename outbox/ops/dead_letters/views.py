"""Dead letters as an operator sees them, and which of them a filter means."""

from __future__ import annotations

from collections.abc import AsyncIterable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from outbox.deliveries import split_stack
from outbox.errors import PoisonMessage, Refused
from outbox.ops.shared.names import last_word, word
from outbox.ops.shared.text import compact_json, shown
from outbox.ops.values.dead_letters import DeadAttempt, DeadLetterFilter, DeadLetterView, Moved, Resubmit
from outbox.ports import SUBSCRIPTIONS, BlobStore, DeadLetterEntry, Document
from outbox.resubmission import (
    NO_RECORD_OF_ITS_OWN,
    REJECTED,
    dead_letter_name,
    is_edit_without_record,
    may_have_been_applied,
)
from outbox.runtime.delivery.claim_check import redeem
from outbox.runtime.start.notes import handlers_in


class HasNumber(Protocol):
    """An item that a queue has numbered."""

    @property
    def sequence(self) -> int:
        """Its number."""


Numbered = TypeVar("Numbered", bound=HasNumber)


class TypeNames(NamedTuple):
    """The message types of a queue's handlers by the names of those, as far as they are registered."""

    by_handler: dict[str, frozenset[str]]

    @property
    def only(self) -> str:
        """The only type, which a message without one has; empty if there are several."""
        names = frozenset[str]().union(*self.by_handler.values())
        return next(iter(names)) if len(names) == 1 else ""


async def type_names(queue: str, notes: AsyncIterable[Document]) -> TypeNames:
    """The message types of a queue's or topic's handlers, from the notes."""
    found: dict[str, frozenset[str]] = {}
    async for _, handler in handlers_in(notes):
        if handler.source == queue or handler.source.startswith(queue + SUBSCRIPTIONS):
            found[handler.name] = found.get(handler.name, frozenset()) | {kind.name for kind in handler.types}
    return TypeNames(found)


def exception_of(reason: str, description: str) -> str:
    """The class of the exception that a message failed with; empty where it did not fail, or said no class."""
    name = description.partition("\n")[0].partition(":")[0].strip()
    return name if reason == "failed" and name.replace(".", "").replace("_", "").isalnum() else ""


def matches(dead: DeadLetterEntry, where: DeadLetterFilter, types: TypeNames) -> bool:
    """Whether a dead letter is meant by a filter; `types` are those of its queue's handlers."""
    type = dead.message.type or types.only
    name = exception_of(dead.reason, dead.description)
    texts = dead.reason, dead.description
    return (
        where.reason in ("", dead.reason)
        and where.type in ("", type)
        and (not where.handler or type in types.by_handler.get(where.handler, ()))
        and where.exception in ("", name, name.rpartition(".")[2])
        and where.since <= dead.enqueued_ms / 1_000 < where.before
        and (any(where.text in text for text in texts) or where.text.encode() in dead.message.body)
    )


def name_of(dead: DeadLetterEntry) -> str:
    """Return a dead letter's name: its identity, else its number."""
    return dead_letter_name(dead.queue, dead.sequence, dead.message, dead.reason)


def view_of(id: str, dead: DeadLetterEntry, only_type: str) -> DeadLetterView:
    """A dead letter without its body; `only_type` is the only type of its queue's handlers, if there is one."""
    message = dead.message
    description, stack = split_stack(dead.description)
    return DeadLetterView(
        id=id,
        sequence=dead.sequence,
        queue=dead.queue,
        reason=dead.reason,
        description=description,
        type=message.type,
        delivery_count=dead.delivery_count,
        created=(message.created_ms or dead.enqueued_ms) / 1_000,
        key=message.session_id,
        correlation_id=message.correlation_id,
        size_bytes=len(message.body),
        handled_as=message.type or only_type,
        traceback=stack,
    )


def those_of(queue: str, id: str, same: Sequence[Numbered], sequence: int) -> Sequence[Numbered]:
    """Of an id's dead letters the one of a number, or (0) all of them.

    Raises:
        LookupError: that one is gone.
    """
    found = [each for each in same if sequence in (0, each.sequence)]
    if not found:
        raise LookupError(f"{queue} has no dead letter {id!r} of number {sequence} any more; list them again")
    return found


def attempts_of(ids: Collection[str], dead: Iterable[tuple[str, DeadAttempt]]) -> dict[str, list[DeadAttempt]]:
    """Of all dead letters of a queue, by their ids, those of some ids."""
    wanted, found = set(ids), dict[str, list[DeadAttempt]]()
    for id, each in dead:
        if id in wanted:
            found.setdefault(id, []).append(each)
    return found


def check_edit(asked: Resubmit) -> bytes | None:
    """The body of an edit, JSON without white space; None without one.

    Raises:
        Refused: it is not JSON, or not for a single dead letter.
    """
    if asked.body is None:
        return None
    if asked.id is None:
        raise Refused("a body is for a single id; name it")
    return compact_json(asked.id, asked.body)


def discarded(id: str, numbers: list[int]) -> Moved:
    """The discard of an id's dead letters: which they were, where they were several."""
    return Moved(len(numbers), id=id, numbers=numbers if len(numbers) > 1 else UNSET)


async def with_body(
    id: str, dead: DeadLetterEntry, only_type: str, blobs: BlobStore, *, is_only: bool = True
) -> DeadLetterView:
    """Return a dead letter with its body as JSON, text or base64; `is_only`: no other has its id.

    Raises:
        Refused: the body lies in a blob that is gone.
    """
    message = dead.message
    if message.claim:
        try:
            message = await redeem(message, blobs)
        except PoisonMessage as gone:
            text = f"{dead.queue}/{id}: {gone.description}; it can only be discarded"
            raise Refused(text) from gone
    cure = cure_of(id, dead, is_only=is_only)
    letter = msgspec.structs.replace(view_of(id, dead, only_type), size_bytes=len(message.body), cure=cure)
    return msgspec.structs.replace(letter, **shown(id, message.body))


def cure_of(id: str, dead: DeadLetterEntry, *, is_only: bool = True) -> str:
    """Return the commands that may cure a dead letter, by its refusal; among several of its id by number."""
    which = ("" if is_only else f"--sequence {dead.sequence} ") + f"{word(dead.queue)} {last_word(id)}"
    again = f"`outbox dead-letters resubmit {which}`"
    edited = f"`outbox dead-letters resubmit --body FILE {which}`"
    discard = f"`outbox dead-letters discard {which}`"
    send = f"`outbox send {word(dead.queue.partition(SUBSCRIPTIONS)[0])} BODY --type TYPE --id NEW-ID`"
    if may_have_been_applied(dead.reason, dead.description) or is_edit_without_record(dead.reason, dead.description):
        return f"look at the state that it would have changed; {discard}; if it is still to be done, {send}"
    if dead.description != REJECTED and dead.reason == "payload-differs":
        return f"the first message of this id counts; {discard}; if this one is to be done too, {send}"
    if dead.description != REJECTED and dead.reason in _AS_IT_IS:
        return f"{discard} and, corrected, {send}; or deploy what takes it as it is, and {again}"
    if SUBSCRIPTIONS in dead.queue or (dead.description != REJECTED and dead.reason in NO_RECORD_OF_ITS_OWN):
        return f"{again} once its cause is mended, or {discard}"  # it cannot be edited
    if dead.description == REJECTED:
        return f"{edited} with a corrected body, or {again} once its handler takes it as it is, or {discard}"
    return f"{again} once its cause is mended, or {edited} with a corrected body, or {discard}"


_AS_IT_IS = NO_RECORD_OF_ITS_OWN - {"MaxDeliveryCountExceeded", "TTLExpiredException"}
"""Reasons that lie in the message itself."""
