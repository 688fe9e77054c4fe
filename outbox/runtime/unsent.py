"""Where commits may still have to send: read out of unfinished documents, whichever protocol wrote them.

Only for the question whether a queue is drained.  Whoever sends reads the record itself; see `sweep`.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from outbox.ports import SUBSCRIPTIONS, Document, Output, StateStore


class _Held(msgspec.Struct):
    """The outputs of a record, or of the one that is staged; `spilled` ones are not looked at."""

    outputs: tuple[Output, ...] = ()
    spilled: str = ""
    record: _Held | None = None


async def may_be_sent_to(sources: Collection[str], *stores: StateStore) -> bool:
    """Whether something unfinished may hold outputs for one of these queues or subscriptions."""
    destinations = {source.partition(SUBSCRIPTIONS)[0] for source in sources}
    for store in stores:
        async for document in store.unfinished():
            if _holds(document, destinations):
                return True
    return False


def _holds(document: Document, destinations: Collection[str]) -> bool:
    try:
        held = msgspec.json.decode(document.body, type=_Held)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False  # somebody else's; nothing is sent from it
    record = held.record or held
    return bool(record.spilled) or any(output.destination in destinations for output in record.outputs)
