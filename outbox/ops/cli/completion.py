"""Completion scripts for shells, made from the parser of the command line itself."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from outbox.errors import Refused

FOLDER_NAMES = frozenset(("FOLDER",))


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script for `bash`, `zsh` or `fish`; where an argument is a path, the shell completes names of files.

    Raises:
        Refused: the package that writes such scripts is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is not installed; pip install outbox-azure[completion]") from error
    for action in _actions(parser):
        if action.type is Path:
            by_name: Any = action
            by_name.complete = shtab.DIRECTORY if action.metavar in FOLDER_NAMES else shtab.FILE
    return shtab.complete(parser, shell)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Every argument of every command."""
    found: list[argparse.Action] = []
    waiting = [parser]
    while waiting:
        for action in waiting.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
            else:
                found.append(action)
    return found
