"""How a message takes effect once, the picture of the README.

A line of `STEPS` is a box.  A line of `PATHS` is an arrow between two boxes, above or below them; one of `CRASHES` is a
bracket below the boxes from the one to the other.
"""

from __future__ import annotations

from itertools import pairwise

from tools.pictures.drawing import Drawing, Entry, entries

PLACE = "docs/once.svg"
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
LINES = 3
POINT = "commit"
"""The step from which the message has taken effect."""

BOX_WIDTH, BOX_HEIGHT, GAP, MARGIN = 132, 96, 16, 22
BOXES_Y, ABOVE_Y, BELOW_Y, CRASH_Y, HEIGHT = 116, 78, 240, 284, 344
WIDTH = 2 * MARGIN + 6 * BOX_WIDTH + 5 * GAP


def draw() -> str:
    """The picture as SVG."""
    steps, paths, crashes = entries(STEPS), entries(PATHS), entries(CRASHES)
    left = {step.words[0]: MARGIN + index * (BOX_WIDTH + GAP) for index, step in enumerate(steps)}
    drawing = Drawing(TITLE, WIDTH, size=13)
    drawing.text(TITLE, MARGIN, 36, "text title")
    for step in steps:
        name = step.words[0]
        kind = "point" if name == POINT else "box"
        drawing.box(left[name], BOXES_Y, BOX_WIDTH, BOX_HEIGHT, name, step.lines, kind, line_count=LINES)
    for here, there in pairwise(steps):
        level = BOXES_Y + BOX_HEIGHT / 2
        drawing.arrow([(left[here.words[0]] + BOX_WIDTH, level), (left[there.words[0]], level)])
    for path in paths:
        _path(drawing, path, left)
    for crash in crashes:
        _bracket(drawing, crash, left)
    return drawing.svg(HEIGHT)


def _path(drawing: Drawing, path: Entry, left: dict[str, int]) -> None:
    """Draw a dashed way from one box to another, past those between, with its text on it."""
    where, begin, end = path.words
    first, last = (left[name] + BOX_WIDTH / 2 for name in (begin, end))
    is_above = where == "above"
    level, edge = (ABOVE_Y, BOXES_Y) if is_above else (BELOW_Y, BOXES_Y + BOX_HEIGHT)
    drawing.arrow([(first, edge), (first, level), (last, level), (last, edge)], "path")
    room = abs(last - first) + (3 * BOX_WIDTH if is_above else 0)
    drawing.text(path.lines[0], (first + last) / 2, level + (-8 if is_above else 16), "path-text middle", room)


def _bracket(drawing: Drawing, crash: Entry, left: dict[str, int]) -> None:
    """Draw what a failure within some steps leaves, and what becomes of that."""
    begin, end = left[crash.words[0]], left[crash.words[1]] + BOX_WIDTH
    drawing.line([(begin, CRASH_Y - 8), (begin, CRASH_Y), (end, CRASH_Y), (end, CRASH_Y - 8)], "crash")
    drawing.lines(crash.lines, (begin + end) / 2, CRASH_Y + 22, "crash-text middle", end - begin)
