"""The page on logs and processors names tests and planted faults that exist."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT
from tests.simulation.stream_mutants import STREAM_MUTANTS

PAGE = (ROOT / "docs/streams.md").read_text()
SHOWN_BY = re.compile(r"`(test_\w+)`")


def test_every_test_that_the_page_names_exists() -> None:
    names = set(SHOWN_BY.findall(PAGE))
    defined = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert len(names) >= 10 and not names - defined


def test_every_fault_that_the_page_names_is_planted() -> None:
    named = set(re.findall(r'run_mutant "([^"]+)"', PAGE)) | set(re.findall(r"\*([a-z][^*]+)\* is a planted", PAGE))
    assert named and named <= {mutant.name for mutant in STREAM_MUTANTS}
