"""Claim checks: a body too large for the bus travels as the name of a blob.

The name holds the message's identity and the digest of the body, so that two attempts that disagree never share a
blob, and so that what is read can be checked.  Only the names that a message's own claims can have are ever read: a
claim taken from another message does not open that one's body.
"""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

from outbox.app import App
from outbox.errors import NoBlobStore, NotRegistrable, PoisonMessage
from outbox.message import Message
from outbox.ports import BLOBS_CURE, BlobStore, NoBlobs

CLAIM_BYTES_MAX = 256 << 20
_NAME = re.compile(r"claims/([0-9a-f]{64})/([0-9a-f]{64})")


def without_blobs(error: NoBlobStore) -> PoisonMessage:
    """As what a message is refused that needs a blob store where there is none; trying again would not end."""
    return PoisonMessage("no-blob-store", f"{error}; then resubmit it")


def check_blobs(app: App, blobs: BlobStore) -> None:
    """Refuse a start without a blob store to handlers that are seen to write blobs.

    Raises:
        NotRegistrable: there is such a handler.
    """
    if isinstance(blobs, NoBlobs):
        writing = [
            handler.name
            for handler in (*app.handlers, *(route.handler for route in app.routes))
            if handler.binding.writes_blobs
        ]
        if writing:
            raise NotRegistrable(f"{', '.join(writing)} calls ctx.write_blob, and there is no blob store; {BLOBS_CURE}")


def to_claim(message: Message) -> tuple[str, bytes]:
    """The name and bytes of the blob that takes a message's body."""
    return f"claims/{_owner(message)}/{sha256(message.body).hexdigest()}", message.body


async def check_in(message: Message, blobs: BlobStore, *, above_bytes: int) -> Message:
    """The message as it travels: with a body of more than so many bytes in a blob, which is written on return.

    Raises:
        Refused, OutcomeUnknown: it may not be written.
    """
    if len(message.body) <= above_bytes:
        return message
    name, data = to_claim(message)
    await blobs.write(name, data)
    return msgspec.structs.replace(message, body=b"", claim=name)


async def redeem(message: Message, blobs: BlobStore) -> Message:
    """The message with its body back.

    Raises:
        PoisonMessage: the claim is not one of ours, its blob is gone, or it is not what was claimed.
        Refused, OutcomeUnknown: it cannot be read now.
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
