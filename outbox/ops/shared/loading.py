"""Load an application or a pipeline by `module:attribute`, the current folder included."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbox.app import App
from outbox.errors import OutboxError, Refused

if TYPE_CHECKING:
    from outbox.streams import Pipeline

_PACKAGE = Path(__file__).resolve().parents[2]
_INSTALLED = tuple({Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""The folders of the standard library and installed packages, whose lines no user can change."""


def load(name: str) -> object:
    """Import what `module:attribute` names; None where the module has no such attribute.

    Raises:
        Refused: there is no such module, or importing it failed.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise Refused(f"there is no module {error.name!r} in {here} or installed; check {name!r}") from error
        raise Refused(f"{module_name} imports {error.name!r}, which is not installed; install it") from error
    except Exception as error:
        place = _place_of(error) or module_name
        raise Refused(f"importing {module_name} failed at {place}: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found


def load_app(name: str) -> App:
    """Import an application.

    Raises:
        Refused: it cannot be imported, or it is not an App.
    """
    found = load(name)
    if not isinstance(found, App):
        raise Refused(f"{name} is {_kind_of(found)}, not an outbox.App; name the attribute that holds it")
    return found


def make_pipeline(name: str, place: Any) -> Pipeline:
    """Import a pipeline, or a function of a place that makes it or an object with it as `.pipeline`.

    Raises:
        Refused: it cannot be imported or made, or it is none.
        NotRegistrable: the pipeline or one of its logs cannot be.
    """
    from outbox.streams import Pipeline  # here, because an application needs none

    found = load(name)
    if callable(found):
        try:
            found = found(place)
        except OutboxError:
            raise
        except Exception as error:
            at = _place_of(error) or name
            raise Refused(f"{name}(place) failed at {at}: {type(error).__name__}: {error}") from error
    found = getattr(found, "pipeline", found)
    if not isinstance(found, Pipeline):
        raise Refused(
            f"{name} is {_kind_of(found)}, not a Pipeline; name one, or a class or function that takes the place for "
            "its logs, and makes it or an object with it as .pipeline"
        )
    return found


def _kind_of(found: object) -> str:
    return "missing" if found is None else f"of type {type(found).__name__}"


def _place_of(error: Exception) -> str:
    """The line of a failed import: the innermost of the user's own code, else of any; empty if unknown."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [frame for frame in frames if not Path(frame.filename).resolve().is_relative_to(_PACKAGE)]
    own = [frame for frame in own if not any(Path(frame.filename).is_relative_to(folder) for folder in _INSTALLED)]
    chosen = own or frames
    return f"{chosen[-1].filename}:{chosen[-1].lineno}" if chosen else ""
