"""Boxes, arrows and words at places that the picture's text names, in pixels.

    boxes     kind x y width height: name / line / line     `~`: no name
    arrows    kind x,y x,y ...                              the head is at the last point
    lines     kind x,y x,y ...                              the same without a head
    words     kind x y: line / line                         `middle` in the kind, `a+b` for two classes
    crosses   x y

An `area` has its name in its upper left corner; `strip-box` is a box of a row without gaps, where no name is bold.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.pictures.drawing import Drawing, Entry, entries

NO_NAME, STRIP = "~", "strip-"


@dataclass(frozen=True, slots=True)
class Plan:
    """A picture of boxes: the tables that it is made from."""

    title: str
    width: int
    height: int
    boxes: str
    arrows: str = ""
    lines: str = ""
    words: str = ""
    crosses: str = ""

    def draw(self) -> str:
        """Draw it as SVG."""
        boxes, words = entries(self.boxes), entries(self.words)
        drawing = Drawing(self.title, self.width)
        drawing.text(self.title, 24, 36, "text title")
        for line in entries(self.lines):
            drawing.line([_point(word) for word in line.words[1:]], line.words[0])
        for box in boxes:
            _box(drawing, box)
        for arrow in entries(self.arrows):
            drawing.arrow([_point(word) for word in arrow.words[1:]], arrow.words[0])
        for word in words:
            kind, x, y = word.words
            drawing.lines(word.lines, float(x), float(y), kind.replace("+", " "))
        for cross in entries(self.crosses):
            drawing.cross(*map(float, cross.words))
        return drawing.svg(self.height)


def _box(drawing: Drawing, entry: Entry) -> None:
    kind, *numbers = entry.words
    x, y, width, height = map(float, numbers)
    name, *lines = entry.lines or (NO_NAME,)
    if kind == "area":
        drawing.rectangle(x, y, width, height, kind, 10)
        drawing.text(name, x + 12, y + 22, "muted name", width - 16)
    elif kind.startswith(STRIP):
        drawing.rectangle(x, y, width, height, kind.removeprefix(STRIP), 0)
        drawing.centred([name, *lines], x + width / 2, y + height / 2, "text middle", width - 2)
    else:
        drawing.box(x, y, width, height, "" if name == NO_NAME else name, lines, kind)


def _point(word: str) -> tuple[float, float]:
    x, y = word.split(",")
    return float(x), float(y)
