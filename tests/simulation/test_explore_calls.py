"""Calls out of a handler in a batch, every interleaving of small scopes: none is made over what is not committed."""

from __future__ import annotations

import pytest

from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.search import search
from tests.simulation.explored import clean
from tests.simulation.mutant_apps import scenario

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scope", ["engine", "partition", "item"])
@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "error", "expire", "jump"])
def test_a_message_that_calls_out_of_its_batch_takes_effect_once(scope: str, fault: FaultKind) -> None:
    workers = 1 if scope == "item" else 2
    clean(search(scenario(scope, "calling", amounts=(5, -3), batch=2, workers=workers, faults={fault: 1})))


@pytest.mark.parametrize("scope", ["engine", "partition"])
def test_a_call_that_is_not_idempotent_is_made_once_while_nothing_fails(scope: str) -> None:
    clean(search(scenario(scope, "ringing", amounts=(5, -3), batch=2, workers=1)))
