"""The judgement of landed rows as new, known or contradicting: a pure decision over digests.

Of several copies of an identity the first delivery counts; its content decides what the others are: an equal one is a
duplicate, another type or body a conflict.  What the ledger holds was delivered before all that has landed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc

IDENTITY_BYTES, CONTENT_BYTES = 24, 16
FIRST_DELIVERY = [("sequence_number", "ascending"), ("delivery_count", "ascending"), ("fingerprint", "ascending")]


@dataclass(frozen=True, slots=True)
class Keyed:
    """The columns that identify a row of a table, and the columns in which equal ones may differ."""

    identity: tuple[str, ...]
    content: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """All of them."""
        return [*self.identity, *self.content]

    def identities(self, rows: pa.Table | pa.RecordBatch) -> list[bytes]:
        """The digests that tell each row from all others."""
        return digests(rows, self.identity, IDENTITY_BYTES)

    def contents(self, rows: pa.Table | pa.RecordBatch) -> list[bytes]:
        """The digests of the content in which equal rows agree."""
        return digests(rows, self.content, CONTENT_BYTES)


MESSAGES = Keyed(("message_id",), ("fingerprint",))
CONTRADICTIONS = Keyed(("message_id", "fingerprint"))
"""A conflict is kept once for each content, so that a crash between two commits adds none."""


@dataclass(slots=True)
class Judged:
    """Positions of rows by verdict; `new` and `conflicts` in the order of delivery."""

    new: list[int] = field(default_factory=list)
    duplicates: list[int] = field(default_factory=list)
    conflicts: list[int] = field(default_factory=list)


def judge(
    order: Iterable[int], identities: Sequence[bytes], contents: Sequence[bytes], known: Mapping[bytes, bytes]
) -> Judged:
    """Give each row its verdict, in the order of delivery; `known` maps identities of the ledger to their content."""
    settled, judged = dict(known), Judged()
    for position in order:
        identity = identities[position]
        first = settled.get(identity)
        if first is None:
            settled[identity] = contents[position]
            judged.new.append(position)
        elif first == contents[position]:
            judged.duplicates.append(position)
        else:
            judged.conflicts.append(position)
    return judged


def order_of_delivery(rows: pa.Table) -> list[int]:
    """The positions of rows, the first delivery first."""
    found: list[int] = pc.sort_indices(rows, sort_keys=FIRST_DELIVERY, null_placement="at_start").to_pylist()
    return found


def digests(rows: pa.Table | pa.RecordBatch, columns: Sequence[str], size: int) -> list[bytes]:
    """A digest for each row over the texts of some columns; of several each is prefixed by its length."""
    texts = [[(text or "").encode() for text in rows.column(name).to_pylist()] for name in columns]
    if len(texts) == 1:
        return [blake2b(text, digest_size=size).digest() for text in texts[0]]
    joined = (b"".join(b"%d:%b" % (len(part), part) for part in parts) for parts in zip(*texts, strict=True))
    return [blake2b(text, digest_size=size).digest() for text in joined] if texts else [bytes(size)] * rows.num_rows
