"""The vocabulary of the drawings: boxes, lines of text, arrows, brackets, dots and crash marks on a ground, as SVG.

A drawing has a title, its text as a description for readers who do not see it, a ground of its own, and colours for a
light and a dark screen.  Text that has no room is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

FONT = '-apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif'
LIGHT = {"ink": "#24292f", "muted": "#57606a", "ground": "#ffffff", "edge": "#d0d7de", "box": "#f6f8fa"}
LIGHT |= {"grey": "#8c959f", "blue": "#0969da", "pale": "#ddf4ff", "red": "#cf222e", "rose": "#ffebe9"}
DARK = {"ink": "#e6edf3", "muted": "#8b949e", "ground": "#0d1117", "edge": "#30363d", "box": "#161b22"}
DARK |= {"grey": "#6e7681", "blue": "#58a6ff", "pale": "#0c2d6b", "red": "#ff7b72", "rose": "#490202"}

COLOURS = {
    "ground": "fill: ground; stroke: edge",
    "area": "fill: none; stroke: grey; stroke-dasharray: 3 3",
    "box": "fill: box; stroke: grey",
    "point": "fill: pale; stroke: blue; stroke-width: 2",
    "fault": "fill: rose; stroke: red",
    "empty": "fill: ground; stroke: grey; stroke-dasharray: 3 3",
    "band": "fill: pale",
    "line": "fill: none; stroke: muted; stroke-width: 1.5",
    "head": "fill: muted",
    "path": "fill: none; stroke: blue; stroke-width: 1.5; stroke-dasharray: 5 4",
    "path-head": "fill: blue",
    "strong": "fill: none; stroke: blue; stroke-width: 2.5",
    "strong-head": "fill: blue",
    "later": "fill: none; stroke: muted; stroke-width: 1.5; stroke-dasharray: 5 4",
    "later-head": "fill: muted",
    "crash": "fill: none; stroke: red; stroke-width: 1.5",
    "crash-head": "fill: red",
    "cross": "fill: none; stroke: red; stroke-width: 2.5",
    "hint": "fill: none; stroke: red; stroke-dasharray: 1 3",
    "rule": "fill: none; stroke: edge",
    "lane": "fill: none; stroke: grey; stroke-dasharray: 2 4",
    "dot": "fill: muted",
    "text": "fill: ink",
    "path-text": "fill: blue",
    "crash-text": "fill: red",
    "muted": "fill: muted",
}
"""What a class looks like; the names of colours are those of `LIGHT` and `DARK`."""
SHAPES = {
    "name": "font-weight: 600",
    "title": "font-size: 17px; font-weight: 600",
    "middle": "text-anchor: middle",
    "code": 'font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; font-size: 13px',
}
"""Classes of text that say nothing of a colour."""
LETTER, CODE_LETTER = 0.54, 0.61
"""The mean width of a letter in a size of one pixel, with some room."""
HEADS = {
    (1, 0): ((-8, -5), (-8, 5)),
    (-1, 0): ((8, -5), (8, 5)),
    (0, 1): ((-5, -8), (5, -8)),
    (0, -1): ((-5, 8), (5, 8)),
}
CROSS = 6


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a picture's text: the words before the colon, and the lines behind it."""

    words: tuple[str, ...]
    lines: tuple[str, ...]


def entries(text: str) -> list[Entry]:
    """Read a table of a picture's text: `words: line / line`, one entry a line, or more where those begin with `/`."""
    found = []
    for line in re.sub(r"\n\s*/ ", " / ", text.strip()).splitlines():
        words, _, said = line.partition(":")
        found.append(Entry(tuple(words.split()), tuple(part.strip() for part in said.split(" / ") if part.strip())))
    return found


class Drawing:
    """A drawing under way."""

    def __init__(self, title: str, width: int, *, size: int = 14) -> None:
        self.title, self.width, self.size = title, width, size
        self._said: list[str] = []
        self._under: list[str] = []
        self._parts: list[str] = []
        self._used: set[str] = set()

    @property
    def line_height(self) -> int:
        """The distance of two lines of text."""
        return self.size + 4

    def text(self, line: str, x: float, y: float, kind: str = "text", room: float = 0) -> None:
        """A line of text from `x`, or round it where `kind`, its classes, says `middle`.

        Raises:
            ValueError: it is longer than `room`, leaves the drawing, or has no colour.
        """
        classes = kind.split()
        if not COLOURS.keys() & set(classes):
            raise ValueError(f"{line!r} has no colour: add a class such as `text` to {kind!r}")
        room = room or (2 * min(x, self.width - x) if "middle" in classes else self.width - x)
        if self.measured(line, kind) > room:
            raise ValueError(f"{line!r} has no room in {room:.0f} pixels")
        self._use(classes)
        self._said.append(line)
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(line)}</text>')

    def measured(self, line: str, kind: str = "text") -> float:
        """The width of a line of text at most."""
        classes = kind.split()
        size = 17 if "title" in classes else 13 if "code" in classes else self.size
        return len(line) * size * (CODE_LETTER if "code" in classes else LETTER)

    def lines(self, lines: Sequence[str], x: float, y: float, kind: str = "text", room: float = 0) -> None:
        """Lines of text, the first at `y`."""
        for number, line in enumerate(lines):
            self.text(line, x, y + number * self.line_height, kind, room)

    def centred(self, lines: Sequence[str], x: float, y: float, kind: str = "text", room: float = 0) -> None:
        """Lines of text whose middle is at `y`."""
        top = y - len(lines) * self.line_height / 2 + self.size - 0.5
        self.lines(lines, x, top, kind, room)

    def rectangle(self, x: float, y: float, width: float, height: float, kind: str = "box", radius: int = 6) -> None:
        """A rectangle; a band lies below all others."""
        self._use([kind])
        part = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"/>'
        (self._under if kind == "band" else self._parts).append(part)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        name: str,
        lines: Sequence[str] = (),
        kind: str = "box",
        *,
        line_count: int = 0,
    ) -> None:
        """A box with a name, and text below that, in its middle, or where that of `line_count` lines would begin."""
        self.rectangle(x, y, width, height, kind)
        middle, room = x + width / 2, width - 4
        count = (line_count or len(lines)) + bool(name)
        top = y + (height - count * self.line_height) / 2 + self.size - 0.5
        if name:
            self.text(name, middle, top, "text name middle", room)
        self.lines(lines, middle, top + bool(name) * self.line_height, "text middle", room)

    def line(self, points: Sequence[Point], kind: str) -> None:
        """A line through some points."""
        self._use([kind])
        way = "L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path class="{kind}" d="M{way}"/>')

    def arrow(self, points: Sequence[Point], kind: str = "line") -> None:
        """A line through some points, level or upright, with a head at the last."""
        (from_x, from_y), (x, y) = points[-2:]
        across = (x > from_x) - (x < from_x), (y > from_y) - (y < from_y)
        self.line([*points[:-1], (x - 6 * across[0], y - 6 * across[1])], kind)
        head = "head" if kind == "line" else f"{kind}-head"
        self._use([head])
        corners = " ".join(f"{x + dx:g},{y + dy:g}" for dx, dy in ((0, 0), *HEADS[across]))
        self._parts.append(f'<polygon class="{head}" points="{corners}"/>')

    def dot(self, x: float, y: float) -> None:
        """Something that happens at one place."""
        self._use(["dot"])
        self._parts.append(f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="5"/>')

    def cross(self, x: float, y: float) -> None:
        """A crash."""
        self._use(["cross"])
        low, high = (x - CROSS, y - CROSS), (x + CROSS, y + CROSS)
        way = f"M{low[0]:g} {low[1]:g}L{high[0]:g} {high[1]:g}M{low[0]:g} {high[1]:g}L{high[0]:g} {low[1]:g}"
        self._parts.append(f'<path class="cross" d="{way}"/>')

    def svg(self, height: float) -> str:
        """The whole drawing."""
        self._use(["ground"])
        ground = f'<rect class="ground" x="0.5" y="0.5" width="{self.width - 1}" height="{height - 1:g}" rx="10"/>'
        size = f'viewBox="0 0 {self.width} {height:g}" width="{self.width}" height="{height:g}"'
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description">',
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="description">{escape(" ".join(self._said))}</desc>',
            f"<style>\n{self._style()}\n</style>",
            ground,
        ]
        return "\n".join([*head, *self._under, *self._parts, "</svg>", ""])

    def _use(self, classes: Iterable[str]) -> None:
        self._used |= set(classes)

    def _style(self) -> str:
        """The rules of the classes that are used, for a light and for a dark screen."""
        unknown = self._used - set(COLOURS) - set(SHAPES)
        if unknown:
            raise ValueError(f"no class is called {sorted(unknown)}; there are {sorted({*COLOURS, *SHAPES})}")
        coloured = [name for name in COLOURS if name in self._used]
        shaped = [f".{name} {{ {rule} }}" for name, rule in SHAPES.items() if name in self._used]
        light = [f".{name} {{ {painted(COLOURS[name], LIGHT)} }}" for name in coloured]
        dark = [f".{name} {{ {painted(COLOURS[name], DARK)} }}" for name in coloured]
        font = f"text {{ font: {self.size}px {FONT} }}"
        return "\n".join([font, *light, *shaped, "@media (prefers-color-scheme: dark) {", *dark, "}"])


def painted(rule: str, palette: dict[str, str]) -> str:
    """A rule with the colours of a palette for their names."""
    return "; ".join(
        f"{name}: {palette.get(value, value)}" for name, value in (part.split(": ") for part in rule.split("; "))
    )
