"""The outcomes of Blob Storage's answers, and of missing answers."""

from __future__ import annotations

import aiohttp
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

from outbox.azure.unsent import unsent
from outbox.errors import OutboxError, OutcomeUnknown, Refused, Throttled, TooLarge

FAILURES = (AzureError, aiohttp.ClientError, TimeoutError, OSError)
"""The exceptions of a failed call of the SDK."""

BUSY_PAUSE_S = 1.0


def is_no_container(error: BaseException) -> bool:
    """Whether it is the container that was not found."""
    return getattr(error, "error_code", None) == "ContainerNotFound"


def as_error(error: BaseException, what: str) -> OutboxError:
    """Translate a failure of the storage client into the error that says what may be concluded."""
    status = error.status_code if isinstance(error, HttpResponseError) else None
    if status == 429 or (status == 503 and getattr(error, "error_code", None) == "ServerBusy"):
        return Throttled(f"{what}: the storage account is busy; try again later", retry_after_s=BUSY_PAUSE_S)
    if status == 413:
        return TooLarge(f"{what}: larger than Blob Storage takes")
    if is_no_container(error):
        return Refused(
            f"{what}: there is no such container; make it, or name the one that is there (a command: by --blob-states)"
        )
    if status in (400, 401, 403, 404) or isinstance(error, ClientAuthenticationError):
        return Refused(f"{what}: refused ({status or 'no credential'}); look at keys, roles and the container")
    if refusal := unsent(error, what, "Blob Storage"):
        return refusal
    return OutcomeUnknown(f"{what}: outcome unknown ({status or type(error).__name__})")
