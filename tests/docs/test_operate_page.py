"""The page on operating says rightly which commands take a folder, and which answer in JSON."""

from __future__ import annotations

import argparse
import re

from outbox.ops.cli.parser import make_parser
from tests.docs.blocks import ROOT

PAGE = " ".join((ROOT / "docs/how-to/operate.md").read_text().split())
SENTENCES = (
    r"take `--data FOLDER` and `--json`\. (?P<json>[^;.]+) need no folder and take `--json`; "
    r"(?P<data>[^;.]+) serve a folder and take `--data`; (?P<neither>[^;.]+) take neither\."
)


def options(parser: argparse.ArgumentParser, name: str = "") -> dict[str, set[str]]:
    """The options of every command."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        return {name: {option for action in parser._actions for option in action.option_strings}}
    found: dict[str, set[str]] = {}
    for verb, command in groups[0].choices.items():
        found |= options(command, f"{name} {verb}".strip())
    return found


def test_the_commands_without_a_folder_or_json_are_those_that_the_page_names() -> None:
    sentences = re.search(SENTENCES, PAGE)
    assert sentences is not None
    said = {kind: set(re.findall(r"`([^`]+)`", text)) for kind, text in sentences.groupdict().items()}
    kinds = {("--data" in taken, "--json" in taken): set[str]() for taken in options(make_parser()).values()}
    for name, taken in options(make_parser()).items():
        kinds["--data" in taken, "--json" in taken].add(name)
    assert kinds[False, True] == said["json"]
    assert kinds[True, False] == said["data"]
    assert kinds[False, False] == said["neither"]
