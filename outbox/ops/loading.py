"""Load an application by `module:attribute`, the current folder included."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path

from outbox.app import App
from outbox.errors import Refused


def load_app(name: str) -> App:
    """The application that a name means.

    Raises:
        Refused: there is no such module or attribute, importing it failed, or it is not an App.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise Refused(f"there is no module {error.name!r} in {here} or installed; check APP {name!r}") from error
        raise Refused(f"{module_name} imports {error.name!r}, which is not installed; install it") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else module_name
        raise Refused(f"importing {module_name} failed at {place}: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise Refused(f"{name} is {_described(found)}, not an outbox.App; name the attribute that holds it")
    return found


def _described(found: object) -> str:
    return "missing" if found is None else f"of type {type(found).__name__}"
