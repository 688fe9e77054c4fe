"""What the environment says, read in this one place.

OUTBOX_SERVICEBUS                              a connection string, or with an identity
OUTBOX_SERVICEBUS__fullyQualifiedNamespace     range.servicebus.windows.net
OUTBOX_COSMOS                                  a connection string, or with an identity
OUTBOX_COSMOS__accountEndpoint                 https://range.documents.azure.com
OUTBOX_DATABASE                                the database (range)
OUTBOX_BLOBS, OUTBOX_BLOBS__blobServiceUri     the storage account for full sheets
RANGE_SHEETS_FOLDER                            a folder for them instead; for one machine
OUTBOX_CREATE                                  1: make containers and queues that are not there; for emulators
OUTBOX_SWEEP                                   when the timer sweeps (30 * * * * *)
OUTBOX_SWEEP_GRACE_S                           how long something may be unfinished before it does (60)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from outbox import azure
from outbox.azure.functions import FunctionsSettings
from outbox.engine.backend.blobs import FolderBlobStore
from outbox.errors import Refused
from shooting_range.storage import INFRASTRUCTURE, SHEETS, STATES, place_of

SERVICEBUS, COSMOS, BLOBS, FOLDER = "OUTBOX_SERVICEBUS", "OUTBOX_COSMOS", "OUTBOX_BLOBS", "RANGE_SHEETS_FOLDER"
IDENTITY = {
    SERVICEBUS: f"{SERVICEBUS}__fullyQualifiedNamespace",
    COSMOS: f"{COSMOS}__accountEndpoint",
    BLOBS: f"{BLOBS}__blobServiceUri",
}
GRACE_S = "60"


def read(environment: Mapping[str, str]) -> FunctionsSettings:
    """The settings that an environment means; what is missing is told when the backend is first needed."""
    return FunctionsSettings(
        connect=partial(backend_of, dict(environment)),
        servicebus=SERVICEBUS,
        sweep_schedule=environment.get("OUTBOX_SWEEP") or "30 * * * * *",
        sweep_grace_s=float(environment.get("OUTBOX_SWEEP_GRACE_S") or GRACE_S),
    )


def backend_of(environment: Mapping[str, str]) -> azure.AzureBackend:
    """The backend that an environment means, not yet open.

    Raises:
        Refused: a setting is missing; the text names all that are.
    """
    missing = [f"{name} or {IDENTITY[name]}" for name in (SERVICEBUS, COSMOS) if not address(environment, name)]
    if not address(environment, BLOBS) and not environment.get(FOLDER):
        missing.append(f"{BLOBS}, {IDENTITY[BLOBS]} or {FOLDER}")
    if missing:
        raise Refused(f"app settings are missing: {'; '.join(missing)}. local.settings.json.example has all of them")
    return azure.connect(
        cosmos=address(environment, COSMOS),
        servicebus=address(environment, SERVICEBUS),
        database=environment.get("OUTBOX_DATABASE") or "range",
        container=INFRASTRUCTURE,
        states=STATES,
        place=place_of,
        blobs=address(environment, BLOBS) or FolderBlobStore(environment[FOLDER]),
        blob_container=SHEETS,
        create=environment.get("OUTBOX_CREATE", "").lower() in ("1", "true", "yes"),
    )


def address(environment: Mapping[str, str], name: str) -> str:
    """A connection string or address, whichever way it is given; empty where it is not."""
    return environment.get(name) or environment.get(IDENTITY[name]) or ""


settings = read(os.environ)
