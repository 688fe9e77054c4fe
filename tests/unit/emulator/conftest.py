"""An engine behind an emulator, with a plain queue and one that is ordered by key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine.in_memory()
    found.declare(QueueSettings("plain"), QueueSettings("keyed", ordering="per_key"))
    yield found
    found.close()
