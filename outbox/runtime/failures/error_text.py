"""Error texts: turn exceptions of any class into texts for dead letters and log lines.

An application's exception class may itself raise while it is turned into text.  That must not reach the worker, so
only this module reads foreign exceptions.  No text keeps an exception or a frame alive.
"""

from __future__ import annotations

import linecache
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from outbox.deliveries import STACK_HEAD
from outbox.errors import REASON_LENGTH_MAX, PoisonMessage
from outbox.escape import printable
from outbox.runtime.failures.redacting import redacted

FAILURES: Final = (Exception, CancelledError, GeneratorExit)
"""The errors of a handler, a key function or a validator that count as its failures.

Anything else, such as KeyboardInterrupt, is not about the message, and stops the worker.
"""

NOTE_COUNT_MAX = 8
BRIEF_LENGTH_MAX = 300
STACK_LENGTH_MAX = 2_900
"""The longest stack, in characters; a dead letter's text and stack together stay below Azure's 4,096."""
CHAIN_COUNT_MAX = 4
"""How many exceptions of a chain or a group a stack shows."""
LINE_LENGTH_MAX = 200
_FRAME_COUNTS = ((3, 9), (2, 5), (1, 3), (1, 1))
"""How many outermost and innermost frames are shown; fewer where these are too long."""
_RUNNERS = ("outbox.runtime.", "outbox.registration.", "outbox.codec", "outbox.middleware")
"""The modules between a worker and the application's code; their outer frames are left out."""


def safe_text(text: str) -> str:
    """A text that a dead letter can hold: cut, redacted, in characters that can be stored."""
    return _redacted_start(text, 4 * REASON_LENGTH_MAX)[:REASON_LENGTH_MAX].encode(errors="backslashreplace").decode()


def as_text(thing: Any, write: Callable[[Any], str] = str) -> str:
    """The text of any object, as a plain str; a placeholder where it raises."""
    try:
        return str.__str__(write(thing))
    except BaseException:  # even SystemExit: only a text was asked for
        return "<exception str() failed>"


def fit(poison: PoisonMessage) -> PoisonMessage:
    """A refusal, possibly the application's own, with texts that can be stored."""
    return PoisonMessage(safe_text(as_text(poison.reason)), safe_text(as_text(poison.description)))


def failure_text(error: BaseException) -> str:
    """The last lines of a traceback: an error's type, its message, and some of its notes."""
    name, text = _name_of(error), as_text(error)
    return safe_text("; ".join([f"{name}: {text}" if text else name, *_notes_of(error)]))


def brief(error: BaseException) -> str:
    """The same, so short that a message can carry it while it waits."""
    return failure_text(error)[:BRIEF_LENGTH_MAX]


def _name_of(error: BaseException) -> str:
    try:
        kind = type(error)
        place = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
        return f"{place}{kind.__qualname__}"
    except BaseException:  # a metaclass may raise too
        return "exception"


def _notes_of(error: BaseException) -> list[str]:
    try:
        notes = error.__notes__
        return [as_text(note) for note in notes[:NOTE_COUNT_MAX]] if isinstance(notes, list) else []
    except BaseException:  # most errors have none
        return []


# Where it was raised


class Frame(msgspec.Struct, frozen=True):
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
        except BaseException:  # an import hook may make a file of anything
            source = ""
        return f"{place}\n    {_line(source)}" if source else place


def described(text: str, error: BaseException) -> str:
    """The description of a dead letter: a text, and the stack if the application's code raised the error."""
    stack = stack_of(error, only_foreign=True)
    return f"{text}\n{stack}" if stack else text


def stack_of(error: BaseException, *, only_foreign: bool = False) -> str:
    """The stack of an error and its causes: bounded, redacted, each line escaped.

    It begins with the application's first frame.  Without one it shows all frames, or with `only_foreign` none.
    """
    try:
        chain = [(how, found, _frames(found)) for how, found in _chain(error)]
    except BaseException:  # its attributes may raise too
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
    """The line that raised an error, as `file:line`: the application's innermost, if there is one."""
    try:
        frames = _frames(error)
    except BaseException:
        return ""
    foreign = [frame for frame in frames if not frame.module.startswith("outbox.")] or frames
    return _storable(printable(f"{foreign[-1].file}:{foreign[-1].line}")) if foreign else ""


def _chain(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """An error, its causes, and the errors of a group; each once, at most `CHAIN_COUNT_MAX`."""
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
    """The frames from the first of the application on."""
    first = next((at for at, frame in enumerate(frames) if not frame.module.startswith(_RUNNERS)), len(frames))
    return frames[first:]


def _picked(frames: list[Frame], first: int, last: int) -> list[str]:
    if len(frames) <= first + last:
        return [frame.text for frame in frames]
    left_out = f"  ... {len(frames) - first - last} frames left out"
    return [*(f.text for f in frames[:first]), left_out, *(f.text for f in frames[-last:])]


def _line(text: str) -> str:
    return printable(_redacted_start(text, 4 * LINE_LENGTH_MAX))[:LINE_LENGTH_MAX]


def _redacted_start(text: str, length_max: int) -> str:
    return redacted(text[:length_max], is_cut=len(text) > length_max)


def _storable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
