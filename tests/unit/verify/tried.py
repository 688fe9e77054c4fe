"""Operators of one pipeline that are pure, or not, each in its own way."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outbox.engine.engine import Engine
from outbox.streams import Emit, MapState, OrderedLog, Pipeline, Window

ENGINE = Engine.in_memory()


@dataclass
class Line:
    text: str


@dataclass
class Newest:
    text: str = ""
    seen: set[str] = field(default_factory=set)
    counts: MapState[str, int] = field(default_factory=MapState)


LINES = OrderedLog("lines", ENGINE, type=Line)
pipeline = Pipeline("p", source=LINES)
remembered: list[str] = []


def text_of(line: Line) -> str:
    return line.text


@pipeline.flat_map(source=LINES, emits=Line)
def words(line: Line) -> Iterator[Line]:
    for text in line.text.split():
        yield Line(text)


@pipeline.filter(source=LINES)
def is_long(line: Line) -> bool:
    return len(line.text) > 3


@pipeline.map(source=LINES, emits=Line)
def stamped(line: Line) -> Line:
    return Line(f"{line.text} {time.strftime('%Y', time.gmtime(time.time()))}")


@pipeline.map(source=LINES, emits=Line)
def drawn(line: Line) -> Line:
    return Line(f"{line.text} {random.random()}")


@pipeline.map(source=LINES, emits=Line)
def numbered(line: Line) -> Line:
    remembered.append(line.text)
    return Line(f"{line.text} {len(remembered)}")


@pipeline.flat_map(source=LINES, emits=Line)
def distinct(line: Line) -> Iterator[Line]:
    for text in set(line.text.split()):
        yield Line(text)


@pipeline.map(source=LINES, emits=Line)
def reads(line: Line) -> Line:
    return Line(Path("/proc/self/status").read_text()[:4])


@pipeline.map(source=LINES, emits=int)
def number(line: Line) -> int:
    return int(line.text)


@pipeline.reduce(source=LINES, key=lambda line: "all", state=Newest, emits=Line)
def pairs(state: Newest, line: Line, emit: Emit[Line]) -> None:
    emit(Line(state.text + line.text))
    state.text = line.text


@pipeline.reduce(source=LINES, key=lambda line: "all", state=Newest, emits=Line)
def noted(state: Newest, line: Line, emit: Emit[Line]) -> None:
    state.text = str(random.random())


@pipeline.reduce(source=LINES, key=text_of, state=Newest, emits=Line)
def counted(state: Newest, line: Line, emit: Emit[Line]) -> None:
    state.seen |= set(line.text)
    state.counts[line.text] = state.counts.get(line.text, 0) + 1


@pipeline.window(source=LINES, key=lambda line: "all", size_s=60, slide_s=20, emits=Line)
def joined(window: Window, lines: Sequence[Line]) -> Iterator[Line]:
    yield Line("".join(line.text for line in lines))


@pipeline.reduce(source=LINES, key=lambda line: "all", state=Newest, emits=Line)
def third(state: Newest, line: Line, emit: Emit[Line]) -> None:
    state.counts["all"] = state.counts.get("all", 0) + 1
    if state.counts["all"] == 3:
        emit(line)


@pipeline.map(source=LINES, emits=Line)
def here(line: Line) -> Line:
    if "pytest" not in sys.modules:
        raise RuntimeError("it runs in tests alone")
    return line
