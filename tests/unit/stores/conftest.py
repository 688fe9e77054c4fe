"""What a store is asked for, in both of its scopes unless a test says which."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(params=["partition", "item"])
def scope(request: pytest.FixtureRequest) -> Any:
    return request.param
