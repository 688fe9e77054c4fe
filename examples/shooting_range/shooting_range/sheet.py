"""What a full target sheet looks like: an SVG, the same bytes whenever it is drawn of the same holes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

BULLSEYE_MM = 50
FRAME_MM = 250
"""How far a hole may be from the middle, either way: beyond it there is no paper."""
RINGS_MM = (200, 150, 100, BULLSEYE_MM)


@dataclass
class Hole:
    """Where a shot went through, in millimetres from the middle, and whose it was."""

    attempt: str
    player: str
    x: int
    y: int


def is_on_paper(x: int, y: int) -> bool:
    """Whether a shot went through the sheet at all."""
    return max(abs(x), abs(y)) <= FRAME_MM


def is_bullseye(x: int, y: int) -> bool:
    """Whether a shot counts as a hit."""
    return x * x + y * y <= BULLSEYE_MM * BULLSEYE_MM


def draw(title: str, holes: Sequence[Hole]) -> bytes:
    """The sheet with its holes, each with its attempt as a tooltip."""
    side_mm = 2 * FRAME_MM
    rings = [f'<circle r="{radius_mm}" fill="none" stroke="black"/>' for radius_mm in RINGS_MM]
    punched = [
        f'<circle class="hole" cx="{hole.x}" cy="{-hole.y}" r="4"><title>{escape(hole.attempt)}</title>'
        f"<desc>{escape(hole.player)}</desc></circle>"
        for hole in holes
    ]
    view = f"{-FRAME_MM} {-FRAME_MM} {side_mm} {side_mm}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" width="{side_mm}" height="{side_mm}">',
        f"<title>{escape(title)}</title>",
        *rings,
        *punched,
        "</svg>",
    ]
    return "\n".join(lines).encode() + b"\n"
