"""Rows checked by the application that will handle them: decoded, and their key taken, as a delivery would be.

No handler runs.  The application is imported by the driver, which refuses what it does not have, and by each worker
that judges rows; the module must be importable there (its folder, or `--py-files`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from outbox.app import App
from outbox.codec import Codec
from outbox.errors import PoisonMessage, Refused
from outbox.lineage import as_key
from outbox.name_checks import shown, taken
from outbox.ports import SUBSCRIPTIONS

FIRST_SCHEMA = 1
"""The schema version of a body without one: a feed names none."""


@dataclass(frozen=True, slots=True)
class AppCheck:
    """A check of bodies by a queue's handlers of a type; `folder` is searched for the module as well."""

    app: str
    queue: str
    type: str
    folder: str

    def __call__(self, body: bytes) -> str | None:
        """The fault of a body for its handlers; None where they can take it."""
        codec, keys = parts_of(self)
        try:
            value = codec.read(body, FIRST_SCHEMA)
        except Exception as error:  # a validator may raise anything
            return f"not a {codec.name}: {one_line(error)}"
        for name, key in keys:
            try:
                as_key(key(value))
            except Exception as error:  # a key function may raise anything
                return f"the key for {name} cannot be taken: {one_line(error)}"
        return None

    def check(self) -> None:
        """Refuse an application that takes no such message from the queue.

        Raises:
            Refused: it cannot be imported, or has no handler for the type there.
        """
        parts_of(self)


@lru_cache(maxsize=8)
def parts_of(check: AppCheck) -> tuple[Codec, list[tuple[str, Callable[[Any], Any]]]]:
    """The codec of the type, and the keys of its handlers with their names."""
    app = loaded(check.app, check.folder)
    paths = [check.queue, *(h.source for h in app.handlers if h.source.startswith(check.queue + SUBSCRIPTIONS))]
    codecs: dict[str, Codec] = {name: codec for path in paths for name, codec in taken(app, path).items()}
    if check.type not in codecs:
        told = f"they take {shown(codecs)}" if codecs else "it has none"
        raise Refused(f"no handler of {check.app} takes a {check.type} from {check.queue}; {told}")
    codec = codecs[check.type]
    readers = [h for h in app.handlers if h.source in paths and codec.type in h.binding.messages]
    return codec, [(handler.name, handler.key) for handler in readers if handler.key is not None]


def loaded(name: str, folder: str) -> App:
    """The application that `module:attribute` names.

    Raises:
        Refused: there is none.
    """
    module, _, attribute = name.partition(":")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: object = import_module(module)
    except Exception as error:  # whatever the module does as it is imported
        raise Refused(f"--app {name}: importing {module} failed: {type(error).__name__}: {one_line(error)}") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise Refused(f"--app {name} is no outbox.App; give module:attribute of the one that handles the queue")
    return found


def one_line(error: Exception) -> str:
    """An error's words without line ends; pydantic's have several."""
    told = error.description if isinstance(error, PoisonMessage) else str(error)
    return " ".join(told.split())
