"""What handlers may rely on holds under every commit protocol."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(params=["engine", "partition", "item"])
def scope(request: pytest.FixtureRequest) -> Any:
    return request.param
