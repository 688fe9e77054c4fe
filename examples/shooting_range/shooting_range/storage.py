"""Where the range keeps what: states in a container of their own, everything else of the protocol in another.

    container `games`    one item for each target and leader board, in the partition of its *game*: whoever wants to
                         know how a game stands asks one partition, and finds nothing in it but targets and boards
    container `outbox`   staged results, processed markers, idempotency keys, registered handlers
    blobs                full sheets

Two containers cannot be written together, so this is item scope: one item at a time is swapped by its ETag, and the
protocol's ten steps do the rest.  `place_of` is all that it takes to lay out states as one likes.
"""

from __future__ import annotations

from outbox.lineage import parse_state_id
from outbox.ports import DocumentKey
from shooting_range.handlers import game_of

STATES, INFRASTRUCTURE, SHEETS = "games", "outbox", "sheets"


def place_of(id: str) -> DocumentKey:
    """Where a state lies: in the partition of its game, under its type and key.

    Of a very long key only a digest is known, and a message may name no game; such a state has a partition of its own.
    """
    parsed = parse_state_id(id)
    if parsed is None:
        return DocumentKey(id, id)
    kind, key = parsed
    return DocumentKey(game_of(str(key)) or id, f"{kind}:{key}")
