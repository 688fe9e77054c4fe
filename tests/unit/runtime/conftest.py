"""What an application may rely on holds under every commit protocol: each test here runs once in each scope.

A test marked `engine_only` is about something that only the widest scope promises, and says what.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from outbox.testing import Harness
from tests.unit.runtime.journals import Journal

SCOPES = ("engine", "partition", "item")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let a test run in each scope, if it is not for the engine's alone."""
    alone = metafunc.definition.get_closest_marker("engine_only") is not None
    if "scope" in metafunc.fixturenames:
        metafunc.parametrize("scope", SCOPES[:1] if alone else SCOPES, indirect=True)


@pytest.fixture(autouse=True)
def scope(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The scope that a harness opens with here, unless it is told another."""
    name = str(request.param)
    defaults = Harness.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "scope", name)
    return name


@pytest.fixture
async def world(scope: str) -> AsyncIterator[Journal]:
    made = Journal()
    async with made.harness:
        yield made
