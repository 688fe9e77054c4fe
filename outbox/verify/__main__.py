"""`python -m outbox.verify replay TRACE.json`: run a trace again, step by step.

Exit code 0: every step could be taken and no promise is broken any more, 1: it is still broken or the steps have
changed, 2: usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path

from outbox.app import App
from outbox.verify.explorer.replay import read, replay, scenario_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m outbox.verify", description="Look at what exploring has found.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("replay", help="run a trace again, step by step")
    command.add_argument("trace", type=Path, help="the file that a report wrote")
    command.add_argument("--app", default="", help="the application as module:attribute, where the trace names none")
    options = parser.parse_args(arguments)
    try:
        written = read(options.trace.read_bytes())
        app = load(options.app or written.app)
    except (OSError, ValueError, ImportError) as error:
        parser.error(str(error))
    print(f"{written.promise}: {written.text}\n")
    replayed = replay(scenario_of(written, app), written.steps)
    print(replayed.text)
    return 1 if replayed.finding is not None or replayed.stopped else 0


def load(name: str) -> App:
    """The application of that name, or which a function of that name makes that needs no arguments.

    Raises:
        ValueError, ImportError: there is none.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"{name!r} does not name an application; give --app module:attribute")
    sys.path.insert(0, "")
    app = getattr(import_module(module), attribute, None)
    if callable(app) and not isinstance(app, App):
        try:
            signature(app).bind()
        except TypeError as error:
            raise ValueError(
                f"{name} needs arguments ({error}); give --app a module:attribute that needs none"
            ) from error
        app = app()
    if not isinstance(app, App):
        raise ValueError(f"{name} is no App, nor makes one; give --app module:attribute")
    return app


if __name__ == "__main__":
    sys.exit(main())
