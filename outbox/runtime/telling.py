"""What a failure may say: texts that a dead letter or a log line can hold, of exceptions that are anybody's.

A class of exceptions may raise from wherever it is asked for a text.  None of that may reach the worker, so here, and
only here, exceptions of others are asked.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Any, Final

from outbox.runtime.plan import REASON_LENGTH_MAX
from outbox.runtime.redacting import redacted

FAILURES: Final = (Exception, CancelledError, GeneratorExit)
"""What a handler, a key function or a validator fails by, if it raises where nobody cancels or closes it.

Anything else, as KeyboardInterrupt, is not about the message, and stops the worker.
"""

NOTE_COUNT_MAX = 8


def told(text: str) -> str:
    """A text as a dead letter may tell it: cut, without what looks like a secret, in characters that can be stored."""
    shown = redacted(text[: 4 * REASON_LENGTH_MAX])
    return shown[:REASON_LENGTH_MAX].encode(errors="backslashreplace").decode()


def written(thing: Any, write: Callable[[Any], str] = str) -> str:
    """What something says of itself, as a text that is nobody's subclass; or that it cannot say it."""
    try:
        return str.__str__(write(thing))
    except BaseException:  # also one that is not about the message: it was only asked for a text
        return "<exception str() failed>"


def failure_text(error: BaseException) -> str:
    """What a traceback ends with: the type of an error, its message, and its notes as far as there is room."""
    name, text = _name_of(error), written(error)
    return told("; ".join([f"{name}: {text}" if text else name, *_notes_of(error)]))


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
        return [written(note) for note in notes[:NOTE_COUNT_MAX]] if isinstance(notes, list) else []
    except BaseException:  # mostly there are none
        return []
