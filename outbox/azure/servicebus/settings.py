"""The settings that an existing queue or subscription needs, and what goes wrong without them.

What it cannot do without is whether there are sessions, and that is refused elsewhere.  All else works for a while with
other settings: then the broker dead-letters or drops by itself what this library would have handled.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from azure.servicebus.management import QueueProperties, SubscriptionProperties

LOCK = timedelta(seconds=60)
LOCK_MIN = timedelta(seconds=30)
"""The least lock: with a shorter one a busy process loses messages to redelivery, and each delivery counts."""
DELIVERY_COUNT_MAX = 100
"""Far above the runtime's own count of failures, which is the one that decides."""
FOREVER = timedelta(days=3_650)
"""From here on a time means never; the service gives 10,675,199 days for it."""


def misfits(found: QueueProperties | SubscriptionProperties) -> Iterator[str]:
    """The faults of an entity's settings, each with the cure."""
    if (count := found.max_delivery_count) is not None and count < DELIVERY_COUNT_MAX:
        yield (
            f"its max delivery count is {count}: crashes, lost locks and what is read ahead use deliveries up, and "
            f"then the broker dead-letters messages that no handler has refused; set {DELIVERY_COUNT_MAX}"
        )
    if _is_below(found.lock_duration, LOCK_MIN):
        yield (
            f"its locks last {_seconds(found.lock_duration)} s: they run out in a process that is busy, and each time "
            f"counts as a delivery; set {_seconds(LOCK)} s"
        )
    if _is_below(found.default_message_time_to_live, FOREVER) and not found.dead_lettering_on_message_expiration:
        yield (
            f"what it has held for {_seconds(found.default_message_time_to_live)} s is dropped without a trace; set "
            "dead-lettering on expiration, or no time to live"
        )
    if _is_below(found.auto_delete_on_idle, FOREVER):
        yield (
            f"it is deleted with all that it holds after {_seconds(found.auto_delete_on_idle)} s without use; "
            "switch auto-delete off"
        )


def wants_sessions(found: QueueProperties | SubscriptionProperties, *, sessions: bool) -> str:
    """The declared use of sessions that an entity does not meet; empty where it does."""
    if bool(found.requires_session) == sessions:
        return ""
    return "requires sessions" if sessions else "does without sessions"


def _is_below(time: timedelta | str | None, limit: timedelta) -> bool:
    return isinstance(time, timedelta) and time < limit


def _seconds(time: timedelta | str | None) -> str:
    return f"{time.total_seconds():g}" if isinstance(time, timedelta) else "?"
