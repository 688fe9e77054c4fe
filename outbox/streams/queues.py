"""A queue as an output of a processor: what a step emits to it is sent as messages.

    Processor("orders", ..., outputs={"orders": backend.queue("orders")})

The bytes, types and keys of the messages are in the register before one is sent, and their ids follow from the step:
`<identity of the step>-<offset>`.  So any replica sends them, as often as it takes, and a handler takes each once for
as long as its application remembers ids.  They were created at the time of their step, by the clock of the
replica that took it: the processor's own time may be ahead, where one replica's clock was.

The next step begins when all of one have been sent.  A replica that was paused sends them again later, all with their
own ids: copies, and never another order of the first ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from outbox.app import CLAIM_CHECK_BYTES
from outbox.codec import DECODE_ERRORS, Codec, codec_for
from outbox.errors import NotRegistrable, PoisonMessage
from outbox.lineage import as_key
from outbox.message import ID_BYTES_MAX, Message, schema_properties
from outbox.ports import BLOBS_CURE, NoBlobs, Output, QueueRef
from outbox.runtime.delivery.claim_check import check_in
from outbox.streams.register import Out


class QueueOutput:
    """A queue as an output: values as messages, and sending them."""

    def __init__(self, queue: QueueRef) -> None:
        self.queue = queue
        self._codecs: dict[type[Any], Codec] = {}

    def out(self, name: str, values: Sequence[Any]) -> Out:
        """Values as the messages that the register holds.

        Raises:
            PoisonMessage: a value cannot be a message of this queue.
        """
        raws = [self._encoded(value) for value in values]
        types = [self.queue.type or self._codecs[type(value)].name for value in values]
        keys = [] if self.queue.key is None else [self._key(self.queue.key(value)) for value in values]
        return Out(name, raws, types, self.queue.version, keys)

    def _encoded(self, value: Any) -> msgspec.Raw:
        kind = type(value)
        try:
            codec = self._codecs.get(kind)
            if codec is None:
                codec = self._codecs[kind] = codec_for(kind, kind.__name__)
            data = codec.encode(value)
            if b"null" in data:
                codec.decode(data)  # None may stand in a field of numbers
        except (TypeError, NotRegistrable, PoisonMessage, *DECODE_ERRORS) as error:
            raise self._unstorable(f"a {kind.__name__} cannot be sent: {error}; emit plain data of a class") from error
        if len(data) > CLAIM_CHECK_BYTES and isinstance(self.queue.blobs, NoBlobs):
            raise self._unstorable(f"a message of {len(data)} bytes needs a blob store; {BLOBS_CURE}")
        return msgspec.Raw(data)

    def _key(self, given: Any) -> str:
        try:
            key = str(as_key(given))
            size_bytes = len(key.encode())
        except ValueError as error:  # a text that is no UTF-8 as well
            raise self._unstorable(f"a message has no key ({error}); let key= give one for every value") from error
        if size_bytes > ID_BYTES_MAX:
            raise self._unstorable(f"a key of over {ID_BYTES_MAX} bytes; give a shorter one, a digest for example")
        return key

    def _unstorable(self, text: str) -> PoisonMessage:
        return PoisonMessage("unstorable", f"queue {self.queue.name!r}: {text}")

    async def write(self, id: str, out: Out, *, since: int, at_ms: int, until_ms: int) -> int:
        """Send what a step emitted; again, by any replica, they are the same messages.

        Raises:
            UnknownDestination: the queue is not there.
            OutcomeUnknown, Refused: not all are known to be sent; send them again.
        """
        messages = [await self._message(id, offset, out, at_ms) for offset in range(len(out.v))]
        await self.queue.send([Output(self.queue.name, 0, message) for message in messages])
        return since

    async def _message(self, id: str, offset: int, out: Out, at_ms: int) -> Message:
        message = Message(
            body=bytes(out.v[offset]),
            outbox_id=f"{id}-{offset}",
            type=out.types[offset],
            created_ms=at_ms,
            session_id=out.keys[offset] if out.keys else "",
            properties=schema_properties(out.schema),
        )
        return await check_in(message, self.queue.blobs, above_bytes=CLAIM_CHECK_BYTES)
