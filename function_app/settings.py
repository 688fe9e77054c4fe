"""The settings of the environment, read in this one place.

    OUTBOX_SERVICEBUS                              a connection string, or with an identity
    OUTBOX_SERVICEBUS__fullyQualifiedNamespace     bank.servicebus.windows.net
    OUTBOX_COSMOS                                  a connection string, or with an identity
    OUTBOX_COSMOS__accountEndpoint                 https://bank.documents.azure.com
    OUTBOX_DATABASE                                the database (bank)
    OUTBOX_STATES                                  a container in which only states lie; may be left out
    OUTBOX_BLOBS, OUTBOX_BLOBS__blobServiceUri     for bodies that no queue takes; may be left out
    OUTBOX_DISPATCH_LEDGER                         1: note in one document what has left, which is cheaper
    OUTBOX_CREATE                                  1: make containers and queues that are not there; for emulators
    OUTBOX_SWEEP                                   when the timer sweeps (30 * * * * *)
    OUTBOX_SWEEP_GRACE_S                           how long something may be unfinished before it does (60)

The names with `__` are those that the host's own triggers know, so one setting serves both.  Which identity is asked is
for azure.identity: AZURE_CLIENT_ID names a user-assigned one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial

from outbox import azure
from outbox.azure.functions import FunctionsSettings
from outbox.errors import Refused
from outbox.ports import Backend, DocumentKey
from outbox.runtime.commit.sweeper import GRACE_S

SERVICEBUS, COSMOS, BLOBS = "OUTBOX_SERVICEBUS", "OUTBOX_COSMOS", "OUTBOX_BLOBS"
WAYS = {
    SERVICEBUS: (SERVICEBUS, f"{SERVICEBUS}__fullyQualifiedNamespace"),
    COSMOS: (COSMOS, f"{COSMOS}__accountEndpoint"),
    BLOBS: (BLOBS, f"{BLOBS}__blobServiceUri"),
}
REQUIRED = (SERVICEBUS, COSMOS)
PLACE: Callable[[str], DocumentKey] | None = None
"""Where in the container of OUTBOX_STATES a state lies (None: in a partition of its own).  It is code and no setting,
because it must never change: docs/how-to/run-on-azure.md."""
UNDER_HOST = "FUNCTIONS_WORKER_RUNTIME"
"""Set by every Functions host: there a missing setting ends the start, elsewhere the first use."""


def read(environment: Mapping[str, str]) -> FunctionsSettings:
    """The settings that an environment means.

    Raises:
        Refused: under a Functions host, a setting is missing.
    """
    if environment.get(UNDER_HOST):
        check(environment)
    return FunctionsSettings(
        connect=partial(connect, dict(environment)),
        servicebus=SERVICEBUS,
        has_blobs=bool(address(environment, BLOBS)) if environment.get(UNDER_HOST) else None,
        sweep_schedule=environment.get("OUTBOX_SWEEP") or "30 * * * * *",
        sweep_grace_s=number(environment, "OUTBOX_SWEEP_GRACE_S", GRACE_S),
    )


def check(environment: Mapping[str, str]) -> None:
    """Make sure that nothing is missing.

    Raises:
        Refused: something is; the text names all of it.
    """
    missing = [" or ".join(WAYS[name]) for name in REQUIRED if not address(environment, name)]
    if missing:
        raise Refused(f"app settings are missing: {'; '.join(missing)}. local.settings.json.example has all of them")


def connect(environment: Mapping[str, str]) -> Backend:
    """The backend that an environment means, not yet open.

    Raises:
        Refused: a setting is missing, or two do not fit together.
    """
    check(environment)
    states = environment.get("OUTBOX_STATES") or None
    if states and says_yes(environment, "OUTBOX_DISPATCH_LEDGER"):
        raise Refused("a dispatch ledger needs states beside their records: leave out OUTBOX_STATES or the ledger")
    return azure.connect(
        cosmos=address(environment, COSMOS),
        servicebus=address(environment, SERVICEBUS),
        blobs=address(environment, BLOBS) or None,
        database=environment.get("OUTBOX_DATABASE") or "bank",
        states=states,
        place=PLACE if states else None,
        dispatch_ledger=says_yes(environment, "OUTBOX_DISPATCH_LEDGER"),
        create=says_yes(environment, "OUTBOX_CREATE"),
    )


def says_yes(environment: Mapping[str, str], name: str) -> bool:
    """Whether a setting says `1`, `true` or `yes`."""
    return environment.get(name, "").lower() in ("1", "true", "yes")


def number(environment: Mapping[str, str], name: str, otherwise: float) -> float:
    """A number that a setting holds.

    Raises:
        Refused: it is none.
    """
    text = environment.get(name)
    try:
        return float(text) if text else otherwise
    except ValueError as error:
        raise Refused(f"app setting {name} is {(text or '')[:40]!r}, not a number of seconds") from error


def address(environment: Mapping[str, str], name: str) -> str:
    """A connection string or address, whichever way it is given; empty where it is not."""
    return next((environment[way] for way in WAYS[name] if environment.get(way)), "")


settings = read(os.environ)
