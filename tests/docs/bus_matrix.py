"""The table of the Service Bus SDK's calls, made by making them.  `python -m tests.docs.bus_matrix` writes it."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT
from tests.wire.conftest import MODES
from tests.wire.servicebus.sdk_matrix import table, worked

PAGE = ROOT / "docs" / "emulator-compatibility.md"
_PLACE = re.compile(r"(<!-- bus matrix: [^>]*-->\n)(.*?)(<!-- /bus matrix -->)", re.DOTALL)


def with_matrix(page: str, matrix: str) -> str:
    """The page with this matrix in its place."""
    found, count = _PLACE.subn(lambda place: place[1] + matrix + place[3], page)
    assert count == 1, "the page has no place for the matrix"
    return found


def main() -> None:
    matrix = table({mode: worked(mode) for mode in MODES})
    PAGE.write_text(with_matrix(PAGE.read_text(), matrix))


if __name__ == "__main__":
    main()
