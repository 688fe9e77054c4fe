"""Draw how a message takes effect once: `python -m tools.picture` writes docs/once.svg from the text below.

A line of `STEPS` is a box, its text in lines between slashes.  A line of `PATHS` is an arrow between two boxes, above
or below them; one of `CRASHES` is a bracket below the boxes from the one to the other.  Text that has no room is
refused.  The drawing has a ground of its own, and colours for a light and a dark screen.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

PLACE = Path(__file__).resolve().parent.parent / "docs" / "once.svg"
TITLE = "How a message takes effect once"
STEPS = """
receive: one message, / under a lock
load: the key's state / and its ETag
decide: on record? If not, / the handler runs / and only captures
commit: state, outputs and / record together, / if the ETag holds
push: the outputs of / the record, under / stored ids
settle: last: the broker / drops the message
"""
PATHS = """
above decide push: on record (a duplicate, or a crash after the commit): the handler does not run again
below commit load: the ETag has changed: nothing is written
"""
CRASHES = """
receive decide: crash: nothing was written. / The message is delivered again.
commit commit: lost reply: / read the record
push settle: crash: the record has the outputs. / They leave later, under the same ids.
"""
POINT = "commit"
"""The step from which the message has taken effect."""

BOX_WIDTH, BOX_HEIGHT, GAP, MARGIN = 138, 96, 22, 24
BOXES_Y, ABOVE_Y, BELOW_Y, CRASH_Y, HEIGHT = 116, 78, 240, 284, 344
WIDTH = 2 * MARGIN + 6 * BOX_WIDTH + 5 * GAP
LINE_HEIGHT = 17
CHARACTER_WIDTH = 7.0
"""The mean of a sans-serif of 13 pixels, with some room."""
STYLE = """
text { font: 13px -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; fill: #24292f }
.name { font-size: 15px; font-weight: 600 }
.title { font-size: 17px; font-weight: 600 }
.middle { text-anchor: middle }
.ground { fill: #ffffff; stroke: #d0d7de }
.box { fill: #f6f8fa; stroke: #8c959f }
.point { fill: #ddf4ff; stroke: #0969da; stroke-width: 2 }
.line { fill: none; stroke: #57606a; stroke-width: 1.5 }
.head { fill: #57606a }
.path { fill: none; stroke: #0969da; stroke-width: 1.5; stroke-dasharray: 5 4 }
.path-head, .path-text { fill: #0969da }
.crash { fill: none; stroke: #cf222e; stroke-width: 1.5 }
.crash-text { fill: #cf222e }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.ground { fill: #0d1117; stroke: #30363d }
.box { fill: #161b22; stroke: #6e7681 }
.point { fill: #0c2d6b; stroke: #58a6ff }
.line { stroke: #8b949e }
.head { fill: #8b949e }
.path { stroke: #58a6ff }
.path-head, .path-text { fill: #58a6ff }
.crash { stroke: #ff7b72 }
.crash-text { fill: #ff7b72 }
}
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the text: the words before the colon, and what is written."""

    words: tuple[str, ...]
    lines: tuple[str, ...]


def entries(text: str) -> list[Entry]:
    """Read a table of the text."""
    found = []
    for line in text.strip().splitlines():
        words, _, said = line.partition(": ")
        found.append(Entry(tuple(words.split()), tuple(part.strip() for part in said.split(" / "))))
    return found


def draw() -> str:
    """The drawing as SVG.

    Raises:
        ValueError: a line of the text is too long for its place, or names no step.
    """
    steps = entries(STEPS)
    left = {step.words[0]: MARGIN + index * (BOX_WIDTH + GAP) for index, step in enumerate(steps)}
    said = f"{TITLE}: " + "; ".join(f"{step.words[0]}: {' '.join(step.lines)}" for step in steps)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(said)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
        text(TITLE, MARGIN, 36, "title"),
    ]
    for step in steps:
        parts += box(step, left[step.words[0]])
    for here, there in pairwise(steps):
        begin, end = left[here.words[0]] + BOX_WIDTH, left[there.words[0]]
        middle = BOXES_Y + BOX_HEIGHT // 2
        parts += [f'<path class="line" d="M{begin} {middle}H{end - 6}"/>', head(end, middle, "right", "head")]
    for path in entries(PATHS):
        parts += arrow(path, left)
    for crash in entries(CRASHES):
        parts += bracket(crash, left)
    return "\n".join([*parts, "</svg>", ""])


def box(step: Entry, x: int) -> list[str]:
    """A step: its name, and its text below that."""
    name = step.words[0]
    kind = "point" if name == POINT else "box"
    middle = x + BOX_WIDTH // 2
    rows = [
        text(line, middle, BOXES_Y + 46 + number * LINE_HEIGHT, "middle", BOX_WIDTH)
        for number, line in enumerate(step.lines)
    ]
    return [
        f'<rect class="{kind}" x="{x}" y="{BOXES_Y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>',
        text(name, middle, BOXES_Y + 24, "name middle", BOX_WIDTH),
        *rows,
    ]


def arrow(path: Entry, left: dict[str, int]) -> list[str]:
    """A dashed way from one box to another, past those between, with its text on it."""
    where, begin, end = path.words
    [line] = path.lines
    first, last = (left[name] + BOX_WIDTH // 2 for name in (begin, end))
    centre, room = (first + last) // 2, abs(last - first) + (0 if where == "below" else 3 * BOX_WIDTH)
    if where == "above":
        level, edge, words_y, points = ABOVE_Y, BOXES_Y, ABOVE_Y - 8, "down"
        tip = edge - 6
    else:
        level, edge, words_y, points = BELOW_Y, BOXES_Y + BOX_HEIGHT, BELOW_Y + 16, "up"
        tip = edge + 6
    return [
        f'<path class="path" d="M{first} {edge}V{level}H{last}V{tip}"/>',
        head(last, edge, points, "path-head"),
        text(line, centre, words_y, "path-text middle", room),
    ]


def bracket(crash: Entry, left: dict[str, int]) -> list[str]:
    """What a failure within some steps leaves, and what becomes of that."""
    begin, end = (left[name] for name in crash.words)
    end += BOX_WIDTH
    rows = [
        text(line, (begin + end) // 2, CRASH_Y + 22 + number * LINE_HEIGHT, "crash-text middle", end - begin)
        for number, line in enumerate(crash.lines)
    ]
    return [f'<path class="crash" d="M{begin} {CRASH_Y - 8}V{CRASH_Y}H{end}V{CRASH_Y - 8}"/>', *rows]


def head(x: int, y: int, points: str, kind: str) -> str:
    """The head of an arrow, its tip here."""
    ends = {"right": ((-8, -5), (-8, 5)), "down": ((-5, -8), (5, -8)), "up": ((-5, 8), (5, 8))}[points]
    corners = " ".join(f"{x + dx},{y + dy}" for dx, dy in ((0, 0), *ends))
    return f'<polygon class="{kind}" points="{corners}"/>'


def text(line: str, x: int, y: int, kind: str, room: int = WIDTH) -> str:
    """A line of text; `kind` are its classes."""
    if len(line) * CHARACTER_WIDTH > room:
        raise ValueError(f"{line!r} has no room in {room} pixels")
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(line)}</text>'


def main() -> None:
    PLACE.write_text(draw())


if __name__ == "__main__":
    main()
