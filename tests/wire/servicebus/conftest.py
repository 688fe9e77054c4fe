"""The administration client in both shapes, and a fresh name for what a test makes."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.wire.conftest import MODES, Bus
from tests.wire.servicebus.administration import Admin


@pytest.fixture(scope="module", params=MODES)
def admin(bus: Bus, request: pytest.FixtureRequest) -> Iterator[Admin]:
    admin = Admin(bus.connection_string, request.param)
    yield admin
    admin.end()


@pytest.fixture
def name() -> str:
    return f"made-{uuid4().hex[:8]}"
