"""What logs leave behind: at the end every document and blob of theirs is one that something live names.

A live cell is at the floor or behind it; one below is there only while its trim is not over.  A blob is named by such a
cell.  A writer that is killed between its blob and its cell leaves the blob, so a scope with crashes does not ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from outbox.ports import DocumentKey
from outbox.streams.cells import FLOOR, HINT, Cell, Hint
from outbox.streams.horizon import Floor
from outbox.streams.register import REGISTER
from outbox.verify.explorer.ops import Finding

PROMISE = "NoLeftover"


def leftovers(documents: Mapping[DocumentKey, bytes], blobs: Iterable[str]) -> list[Finding]:
    """What is wrong with the documents of logs and processors, and with the blobs, that are there at the end."""
    named: set[str] = set()
    found: list[str] = []
    for row, ids in _rows(documents).items():
        floor = msgspec.json.decode(ids.pop(FLOOR, b"{}"), type=Floor)
        hint = msgspec.json.decode(ids.pop(HINT, b'{"end":0}'), type=Hint)
        cells = {int(id): msgspec.json.decode(body, type=Cell) for id, body in ids.items() if id.isdigit()}
        found += [f"{row}/{id} is neither cell, hint nor floor" for id in ids if not id.isdigit()]
        found += _of_row(row, floor, cells)
        if hint.end > max([floor.index, *(index + 1 for index in cells)]):
            found.append(f"the hint of {row} is {hint.end}, behind its end")
        named |= {cell.blob for index, cell in cells.items() if not cell.gone or index >= floor.cleared}
    found += [f"blob {name} is there, and no cell names it" for name in sorted({*blobs} - named)]
    found += [
        f"{key.partition}/{key.id} is no register"
        for key in documents
        if key.partition.startswith("processor/") and key.id != REGISTER
    ]
    return [Finding(PROMISE, text) for text in found]


def _rows(documents: Mapping[DocumentKey, bytes]) -> dict[str, dict[str, bytes]]:
    """The documents of each row by their ids, of all of its pages."""
    found: dict[str, dict[str, bytes]] = {}
    for key, body in documents.items():
        if key.partition.startswith("log/"):
            found.setdefault("/".join(key.partition.split("/")[:3]), {})[key.id] = body
    return found


def _of_row(row: str, floor: Floor, cells: Mapping[int, Cell]) -> Iterator[str]:
    for index, cell in sorted(cells.items()):
        if cell.gone and index >= floor.index:
            yield f"{row}/{index} is a tombstone, and the floor is {floor.index}"
        if not cell.gone and index < floor.cleared:
            yield f"{row}/{index} is a cell, and all below {floor.cleared} were trimmed"
