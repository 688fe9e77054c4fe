"""What a failure may say: texts that a dead letter or a log line can hold, of exceptions that are anybody's.

A class of exceptions may raise from wherever it is asked for a text.  None of that may reach the worker, so here, and
only here, exceptions of others are asked.  No text keeps an exception or a frame alive.
"""

from __future__ import annotations

import linecache
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from outbox.deliveries import STACK_HEAD
from outbox.errors import PoisonMessage
from outbox.runtime.failures.redacting import redacted
from outbox.runtime.start.plan import REASON_LENGTH_MAX
from outbox.seldom import printable

FAILURES: Final = (Exception, CancelledError, GeneratorExit)
"""What a handler, a key function or a validator fails by, if it raises where nobody cancels or closes it.

Anything else, as KeyboardInterrupt, is not about the message, and stops the worker.
"""

NOTE_COUNT_MAX = 8
STACK_LENGTH_MAX = 2_900
"""How long a stack is at most, in characters; text and stack of a dead letter together stay below Azure's 4,096."""
CHAIN_COUNT_MAX = 4
"""How many exceptions of a chain or a group a stack shows."""
LINE_LENGTH_MAX = 200
_FRAME_COUNTS = ((3, 9), (2, 5), (1, 3), (1, 1))
"""How many of the outermost and of the innermost frames are shown; fewer where these are too long."""
_RUNNERS = ("outbox.runtime.", "outbox.binding", "outbox.codec", "outbox.answering")
"""The modules between a worker and the application's code; their frames in front of it say nothing."""


def safe_text(text: str) -> str:
    """A text as a dead letter may tell it: cut, without what looks like a secret, in characters that can be stored."""
    shown = _redacted_start(text, 4 * REASON_LENGTH_MAX)
    return shown[:REASON_LENGTH_MAX].encode(errors="backslashreplace").decode()


def as_text(thing: Any, write: Callable[[Any], str] = str) -> str:
    """What something says of itself, as a text that is nobody's subclass; or that it cannot say it."""
    try:
        return str.__str__(write(thing))
    except BaseException:  # also one that is not about the message: it was only asked for a text
        return "<exception str() failed>"


def fit(poison: PoisonMessage) -> PoisonMessage:
    """A refusal that an application may have made, with texts that can be stored."""
    return PoisonMessage(safe_text(as_text(poison.reason)), safe_text(as_text(poison.description)))


def failure_text(error: BaseException) -> str:
    """What a traceback ends with: the type of an error, its message, and its notes as far as there is room."""
    name, text = _name_of(error), as_text(error)
    return safe_text("; ".join([f"{name}: {text}" if text else name, *_notes_of(error)]))


def _name_of(error: BaseException) -> str:
    try:
        kind = type(error)
        place = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
        return f"{place}{kind.__qualname__}"
    except BaseException:  # a metaclass may be anything too
        return "exception"


def _notes_of(error: BaseException) -> list[str]:
    try:
        notes = error.__notes__
        return [as_text(note) for note in notes[:NOTE_COUNT_MAX]] if isinstance(notes, list) else []
    except BaseException:  # mostly there are none
        return []


# Where it was raised


class Frame(msgspec.Struct, frozen=True):
    """One frame of a stack."""

    module: str
    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The frame as a traceback shows it, on two lines."""
        place = f'  File "{printable(self.file[-LINE_LENGTH_MAX:])}", line {self.line}, in {printable(self.function)}'
        try:
            source = linecache.getline(self.file, self.line).strip()
        except BaseException:  # a file may be whatever an import hook makes of it
            source = ""
        return f"{place}\n    {_line(source)}" if source else place


def described(text: str, error: BaseException) -> str:
    """The description of a dead letter: a text, and the stack of the error where the application's code raised it."""
    stack = stack_of(error, only_foreign=True)
    return f"{text}\n{stack}" if stack else text


def stack_of(error: BaseException, *, only_foreign: bool = False) -> str:
    """Where an error was raised, and what it was caused by: bounded, redacted, each line escaped.

    It begins with the application's first frame.  Of an error without one it shows all, or with `only_foreign` none.
    """
    try:
        chain = [(how, found, _frames(found)) for how, found in _chain(error)]
    except BaseException:  # its attributes are anybody's too
        return ""
    if not any(_foreign(frames) for _, _, frames in chain) and only_foreign:
        return ""
    shown = [(how, found, _foreign(frames) or frames) for how, found, frames in chain]
    for counts in _FRAME_COUNTS:
        lines = [STACK_HEAD.strip()]
        for how, found, frames in shown:
            if how:
                lines.append(f"{how} {_line(failure_text(found))}")
            lines += _picked(frames, *counts)
        text = "\n".join(lines)
        if len(text) <= STACK_LENGTH_MAX:
            return _storable(text)
    return _storable(text[: text.rfind("\n", 0, STACK_LENGTH_MAX)])


def raised_at(error: BaseException) -> str:
    """The line that raised an error, as `file:line`: of the application, if one of its frames is there."""
    try:
        frames = _frames(error)
    except BaseException:
        return ""
    foreign = [frame for frame in frames if not frame.module.startswith("outbox.")] or frames
    return _storable(printable(f"{foreign[-1].file}:{foreign[-1].line}")) if foreign else ""


def _chain(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """An error, what it was caused by, and what is in it where it is a group; each once, at most so many."""
    waiting, seen, count = [("", error)], set[int](), 0
    while waiting and count < CHAIN_COUNT_MAX:
        how, found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        count += 1
        yield how, found
        if isinstance(found, BaseExceptionGroup):
            waiting += [("in it", inner) for inner in found.exceptions[:CHAIN_COUNT_MAX]]
        cause = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
        if cause is not None:
            waiting.append(("caused by", cause))


def _frames(error: BaseException) -> list[Frame]:
    frames, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        frames.append(Frame(module, code.co_filename, trace.tb_lineno or 0, code.co_qualname))
        trace = trace.tb_next
    return frames


def _foreign(frames: list[Frame]) -> list[Frame]:
    """The frames from the application's first on."""
    for index, frame in enumerate(frames):
        if not frame.module.startswith(_RUNNERS):
            return frames[index:]
    return []


def _picked(frames: list[Frame], first: int, last: int) -> list[str]:
    if len(frames) <= first + last:
        return [frame.text for frame in frames]
    left_out = f"  ... {len(frames) - first - last} frames left out"
    return [*(f.text for f in frames[:first]), left_out, *(f.text for f in frames[-last:])]


def _line(text: str) -> str:
    """A line of a stack that holds somebody's text."""
    return printable(_redacted_start(text, 4 * LINE_LENGTH_MAX))[:LINE_LENGTH_MAX]


def _redacted_start(text: str, length_max: int) -> str:
    return redacted(text[:length_max], is_cut=len(text) > length_max)


def _storable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
