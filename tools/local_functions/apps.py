"""The applications of this library in the process of a local host: opened before the first message, closed at the end.

Azure's host knows nothing of them: there the first invocation opens what it needs, and the process just ends.  Here
queues are made by whoever connects (OUTBOX_CREATE), so triggers would look for some that nobody has made yet; and
clients that are left open are complained of when the process ends.
"""

from __future__ import annotations

import asyncio
import logging

from outbox.azure import functions

log = logging.getLogger("local_functions")

OPEN_WITHIN_S = 10.0
CLOSE_WITHIN_S = 10.0


async def open_apps() -> None:
    """Open every application that the indexed functions have registered, as far as its backend can be reached."""
    for app in functions.registered():
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                await functions.processor_of(app)
        except Exception as error:  # whatever it is, the first message meets it again and says so
            why = str(error)[:200] or f"no answer within {OPEN_WITHIN_S:g} s"
            log.warning(
                "%s cannot be opened yet (%s: %s); the first message tries again", app.name, type(error).__name__, why
            )


async def close_apps() -> None:
    """Let what goes on behind messages end, and close every client of this process."""
    for app in functions.registered():
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await functions.close(app)
        except Exception as error:  # the process ends anyway
            log.warning("%s was not closed: %s: %s", app.name, type(error).__name__, str(error)[:200])
