"""The quickstart, typed into a terminal in an empty folder as a newcomer does; what is wrong with a page is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.docs.terminal import terminal, type_in

PAGE = ROOT / "docs/quickstart.md"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quickstart_does_what_it_says(disk_path: Path) -> None:
    assert type_in(PAGE, disk_path) > 10


def test_an_output_that_the_page_does_not_show_is_noticed(tmp_path: Path) -> None:
    with terminal(tmp_path) as shell, pytest.raises(AssertionError, match="the page says"):
        shell.say("echo one", "two")


def test_a_command_that_sleeps_first_looks_again(tmp_path: Path) -> None:
    with terminal(tmp_path) as shell:
        shell.say("(sleep 1; touch done) &", "")
        shell.say("sleep 0.1; ls", "done")


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    with terminal(tmp_path) as shell, pytest.raises(AssertionError, match="exit code 3"):
        shell.say("(exit 3)", "")


def test_what_a_background_process_says_later_is_waited_for(tmp_path: Path) -> None:
    with terminal(tmp_path) as shell:
        shell.say("(sleep 0.2; echo ready; sleep 60) & slow=$!", "ready")
        shell.say("kill $slow", "")


def test_a_block_without_a_place_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint()\n```\n")
    with pytest.raises(AssertionError, match="where does this go"):
        type_in(page, tmp_path)
