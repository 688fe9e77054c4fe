"""Claim checks: a body too large for the bus travels as the name of a blob.

The name holds digests of the message's identity and of the body, so that different bodies never share a blob, and a
read can be verified.  A message's claim is read only if it names that message's identity: a claim copied from another
message does not open its body.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from outbox.app import App
from outbox.errors import NoBlobStore, NotRegistrable, PoisonMessage
from outbox.message import Message
from outbox.ports import BLOBS_CURE, BlobStore, NoBlobs, Output

CLAIM_BYTES_MAX = 256 << 20
_NAME = re.compile(r"claims/([0-9a-f]{64})/([0-9a-f]{64})")


def without_blobs(error: NoBlobStore) -> PoisonMessage:
    """The refusal of a message that needs a missing blob store; a retry would need it too."""
    return PoisonMessage("no-blob-store", f"{error}; then resubmit it")


def check_blobs(app: App, blobs: BlobStore) -> None:
    """Refuse to start without a blob store where handlers write blobs.

    Raises:
        NotRegistrable: a handler calls `ctx.write_blob`.
    """
    handlers = (*app.handlers, *(route.handler for route in app.routes))
    writing = [handler.name for handler in handlers if handler.binding.writes_blobs]
    if writing and isinstance(blobs, NoBlobs):
        raise NotRegistrable(f"{', '.join(writing)} calls ctx.write_blob, and there is no blob store; {BLOBS_CURE}")


def to_claim(message: Message) -> tuple[str, bytes]:
    """The name and bytes of the blob for a message's body."""
    return f"claims/{_owner(message)}/{sha256(message.body).hexdigest()}", message.body


def checked_outputs(outputs: Sequence[Output], *, above_bytes: int) -> tuple[list[Output], list[tuple[str, bytes]]]:
    """Replace each body above the limit by a claim; also the blobs, to be written before the commit."""
    checked: list[Output] = []
    blobs: list[tuple[str, bytes]] = []
    for output in outputs:
        if len(output.message.body) > above_bytes:
            name, data = to_claim(output.message)
            blobs.append((name, data))
            claim = msgspec.structs.replace(output.message, body=b"", claim=name)
            output = Output(output.destination, output.due_ms, claim)
        checked.append(output)
    return checked, blobs


async def check_in(message: Message, blobs: BlobStore, *, above_bytes: int) -> Message:
    """Move a body above the limit into a blob, which is written on return.

    Raises:
        Refused, OutcomeUnknown: the blob may be missing.
    """
    if len(message.body) <= above_bytes:
        return message
    name, data = to_claim(message)
    await blobs.write(name, data)
    return msgspec.structs.replace(message, body=b"", claim=name)


async def redeem(message: Message, blobs: BlobStore) -> Message:
    """Fetch the body of a message from its blob.

    Raises:
        PoisonMessage: the claim names no blob of this message, or the blob is gone or changed.
        Refused, OutcomeUnknown: the blob cannot be read now.
    """
    match = _NAME.fullmatch(message.claim)
    if match is None or match[1] != _owner(message):
        raise PoisonMessage("undecodable", "the claim check does not name a blob of this message")
    body = await blobs.read(message.claim, bytes_max=CLAIM_BYTES_MAX)
    if body is None or sha256(body).hexdigest() != match[2]:
        raise PoisonMessage("undecodable", f"the blob {message.claim} of the claim check is gone or was changed")
    return msgspec.structs.replace(message, body=body, claim="")


def _owner(message: Message) -> str:
    return sha256(message.identity.encode("utf-8", "surrogatepass")).hexdigest()
