"""Programs that import from `outbox.verify.histories` go on."""

from __future__ import annotations

from outbox.verify.histories.recording import recorded as former_recorded
from outbox.verify.histories.rerun import rerun as former_rerun
from outbox.verify.histories.words import decide as former_decide
from outbox.verify.recorded.definitions import decide
from outbox.verify.recorded.recording import recorded
from outbox.verify.recorded.rerun import rerun


def test_the_former_names_of_documented_modules_import() -> None:
    assert (former_recorded, former_rerun, former_decide) == (recorded, rerun, decide)
