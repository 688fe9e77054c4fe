"""Steps one below the other: what each does, between whom, and what holds after it; for the protocols.

A line of `steps` begins with the step's number (`-`: it has none), its name and its arrows, `worker>store` or, for what
happens later or not always, `worker~store`; `worker!store` is an attempt that loses, `worker` alone something that it
does by itself, `worker!` its end.  A line of `notes` names two steps: it holds after each of them, up to and
with the second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tools.pictures.drawing import Drawing, Entry, entries

WIDTH, MARGIN = 900, 24
NUMBER_X, NAME_X, TEXT_X, LANES_X, NOTES_X = 35, 54, 120, 352, 638
LANES_END = NOTES_X - 12
TOP, HEAD_HEIGHT, ROW_PAD, ANSWER_GAP, ARROW_GAP = 58, 30, 16, 12, 16
_ARROW = re.compile(r"(\w+)(?:([>~!])(\w+)|(!))?$")
_KINDS = {">": "line", "~": "later", "!": "crash"}


@dataclass(frozen=True, slots=True)
class Row:
    """A step of the drawing, with its top and its bottom in pixels."""

    number: str
    name: str
    arrows: tuple[str, ...]
    lines: tuple[str, ...]
    top: float
    bottom: float

    @property
    def level(self) -> float:
        """The middle of it."""
        return (self.top + self.bottom) / 2


@dataclass(frozen=True, slots=True)
class Steps:
    """A picture of steps: the tables that it is made from, and the step from which all has taken effect."""

    title: str
    lanes: tuple[str, ...]
    steps: str
    notes: str
    points: tuple[str, ...]
    """The step from which all has taken effect, and the answer that says so."""
    notes_title: str
    answers_title: str = ""
    answers: str = ""
    crashes: str = "worker"
    """The lane that crashes at the end of each noted step; empty: notes are of no crash."""
    pause: tuple[str, ...] = ()
    """A lane that is killed in one step and is there again from another on: lane, step, step."""
    legend: str = "dashed: not always, or later"

    def draw(self) -> str:
        """Draw it as SVG."""
        return _Drawn(self).svg()


class _Drawn:
    """One drawing of a picture of steps."""

    def __init__(self, picture: Steps) -> None:
        self._picture = picture
        steps, notes, answers = entries(picture.steps), entries(picture.notes), entries(picture.answers)
        self._drawing = Drawing(picture.title, WIDTH)
        width = (LANES_END - LANES_X) / len(picture.lanes)
        self._lane_width = width
        self._lanes = {lane: LANES_X + (index + 0.5) * width for index, lane in enumerate(picture.lanes)}
        self._rows = list(_rows(steps, self._drawing.line_height))
        self._end = self._rows[-1].bottom
        self._notes, self._answers = notes, answers

    def svg(self) -> str:
        """Draw all parts, those below first."""
        drawing, picture = self._drawing, self._picture
        drawing.text(picture.title, MARGIN, 36, "text title")
        if picture.legend:
            drawing.text(picture.legend, MARGIN, TOP + 20, "muted")
        for name, x in self._lanes.items():
            for begin, end in self._alive(name):
                drawing.line([(x, begin), (x, end)], "lane")
        for name, x in self._lanes.items():
            drawing.box(x - self._lane_width / 2 + 2, TOP, self._lane_width - 4, HEAD_HEIGHT, name)
        drawing.text(picture.notes_title, NOTES_X, TOP + 20, f"{self._note_kind} name")
        for row in self._rows:
            self._step(row)
        bottom = self._draw_notes()
        return drawing.svg(self._draw_answers(max(bottom, self._end)))

    @property
    def _note_kind(self) -> str:
        return "crash-text" if self._picture.crashes else "muted"

    def _alive(self, lane: str) -> list[tuple[float, float]]:
        """From where to where a lane is there."""
        whole = TOP + HEAD_HEIGHT, self._end
        if lane not in self._picture.pause:
            return [whole]
        killed, again = (row for row in self._rows if row.name in self._picture.pause)
        return [(whole[0], killed.level), (again.top, whole[1])]

    def _step(self, row: Row) -> None:
        """Draw a row: its number, name and text, and its arrows."""
        drawing, base = self._drawing, row.top + ROW_PAD / 2 + 13.5
        is_point = row.name in self._picture.points
        if is_point:
            drawing.rectangle(MARGIN - 8, row.top + 2, LANES_END - MARGIN + 8, row.bottom - row.top - 4, "band")
        elif row is not self._rows[0] and self._rows[self._rows.index(row) - 1].name not in self._picture.points:
            drawing.line([(MARGIN, row.top), (TEXT_X + 214, row.top)], "rule")
        if row.number != "-":
            drawing.text(row.number, NUMBER_X, base, "muted name middle")
        drawing.text(row.name, NAME_X, base, "text name", TEXT_X - NAME_X)
        drawing.lines(row.lines, TEXT_X, base, room=LANES_X - TEXT_X)
        apart = ARROW_GAP if any(set(arrow) & set(_KINDS) for arrow in row.arrows) else 0
        for number, arrow in enumerate(row.arrows):
            self._arrow(arrow, row.level + (number - (len(row.arrows) - 1) / 2) * apart, strong=is_point)

    def _arrow(self, text: str, level: float, *, strong: bool) -> None:
        found = _ARROW.match(text)
        if found is None:
            raise ValueError(f"{text!r} is no arrow: write worker>store, worker~store, worker!store or worker")
        begin, kind, end, is_killed = found.groups()
        if is_killed:
            self._drawing.cross(self._lanes[begin], level)
            return
        if end is None:
            self._drawing.dot(self._lanes[begin], level)
            return
        self._drawing.arrow(
            [(self._lanes[begin], level), (self._lanes[end], level)], "strong" if strong else _KINDS[kind]
        )

    def _draw_notes(self) -> float:
        """Draw what holds after which steps; where the last ends."""
        drawing, free, place = self._drawing, TOP + HEAD_HEIGHT + 4.0, {row.name: row for row in self._rows}
        names = [row.name for row in self._rows]
        for note in self._notes:
            first, last = note.words
            noted = [place[name] for name in names[names.index(first) : names.index(last) + 1]]
            height = len(note.lines) * drawing.line_height
            top, bottom = noted[0].bottom, noted[-1].bottom
            if self._picture.crashes:
                self._crashes(noted)
            else:
                top = noted[0].top + 6
                bottom -= 6
            middle = max((top + bottom) / 2, free + height / 2)
            kind = "crash" if self._picture.crashes else "line"
            reach = (top - 8, bottom + 8) if self._picture.crashes else (top, bottom)
            drawing.line(
                [(NOTES_X - 6, reach[0]), (NOTES_X, reach[0]), (NOTES_X, reach[1]), (NOTES_X - 6, reach[1])], kind
            )
            drawing.centred(note.lines, NOTES_X + 10, middle, "text", WIDTH - NOTES_X - 16)
            free = middle + height / 2 + 8
        return free

    def _crashes(self, rows: Sequence[Row]) -> None:
        """Draw a crash at the end of each row."""
        x = self._lanes[self._picture.crashes]
        for row in rows:
            self._drawing.line([(x + 10, row.bottom), (NOTES_X, row.bottom)], "hint")
            self._drawing.cross(x, row.bottom)

    def _draw_answers(self, top: float) -> float:
        """Draw the answers of the point of no return side by side; the height of the drawing."""
        if not self._answers:
            return top + 16
        drawing, count = self._drawing, len(self._answers)
        drawing.text(self._picture.answers_title, MARGIN, top + 34, "text name")
        width = (WIDTH - 2 * MARGIN - (count - 1) * ANSWER_GAP) / count
        line_count = max(len(answer.lines) for answer in self._answers)
        height = (line_count + 1) * drawing.line_height + 16
        for index, answer in enumerate(self._answers):
            x = MARGIN + index * (width + ANSWER_GAP)
            name = " ".join(answer.words)
            kind = "point" if name in self._picture.points else "box"
            drawing.box(x, top + 48, width, height, name, answer.lines, kind, line_count=line_count)
        return top + 48 + height + 20


def _rows(steps: Sequence[Entry], line_height: int) -> list[Row]:
    found, top = [], float(TOP + HEAD_HEIGHT + 10)
    for step in steps:
        number, name, *arrows = step.words
        height = max(len(step.lines), len(arrows)) * line_height + ROW_PAD
        found.append(Row(number, name, tuple(arrows), step.lines, top, top + height))
        top += height
    return found
