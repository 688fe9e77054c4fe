"""What runs commands at the site of a module."""

from __future__ import annotations

import pytest

from tests.wire.cli.planted import Run, Site


@pytest.fixture
def run(site: Site, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command: exit code, and all that it said."""

    def command(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = site.run(words)
        return code, "".join(capsys.readouterr())

    return command
