"""python -m tools.official_emulators: make what the sample needs in the emulators of compose.yaml.

Queues come from local/servicebus.json, which the Service Bus emulator reads by itself; the database, its container and
the blob container are made here, through the same SDKs and by the same rules as the application would.  Emulators take
a while to start, so it asks again until they answer or the time is over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

from azure.core.exceptions import AzureError

from function_app.settings import connect
from outbox.azure.connecting import AzureBackend
from outbox.errors import OutboxError, OutcomeUnknown, Unreachable

SETTINGS = Path(__file__).resolve().parent.parent / "local" / "local.settings.official.json"
WAIT_S = 120.0
PAUSE_S = 1.0


def read_settings(path: Path) -> dict[str, str]:
    """The values of a `local.settings.json`."""
    values: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["Values"]
    return values


async def prepare(values: dict[str, str], *, wait_s: float) -> None:
    """Make the database and the containers that settings name, where they are not there yet.

    Raises:
        Refused: they cannot be made.
        OutcomeUnknown: nobody answers within `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    while True:
        backend = connect({**values, "OUTBOX_CREATE": "1"})
        assert isinstance(backend, AzureBackend)
        async with backend:
            try:
                await backend.operations.declare({}, {})  # no queues: their emulator has a file of its own
                return
            except (OutcomeUnknown, Unreachable, AzureError, OSError) as error:
                if time.monotonic() > deadline:
                    raise OutcomeUnknown(
                        f"no answer from the emulators within {wait_s:g} s ({type(error).__name__}); start them with "
                        "`docker compose up --detach`, and look at `docker compose logs`"
                    ) from error
        await asyncio.sleep(PAUSE_S)


def main() -> int:
    """Prepare; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.official_emulators", description=__doc__, allow_abbrev=False)
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="a local.settings.json (the one in local/)")
    parser.add_argument("--wait-s", type=float, default=WAIT_S, help=f"how long emulators may take ({WAIT_S:g})")
    options = parser.parse_args()
    try:
        asyncio.run(prepare(read_settings(options.settings), wait_s=options.wait_s))
    except (OutboxError, OSError, ValueError, KeyError) as error:
        print(f"official_emulators: {error}", file=sys.stderr)
        return 1
    print("ready: database, container and blob container are there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
