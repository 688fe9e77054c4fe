"""The outcomes of Cosmos DB's answers, and of missing answers.

Only what is known to have done nothing is `Refused`, or a lost condition.  Everything else may have been done: the SDK
raises the same class for a request that never left and for one whose answer was lost, so the cause has to prove it.

    409, 412, 404 of the item    the condition of that operation did not hold
    429, 449                     nothing was done; later                       (within a batch, too)
    413                          too large
    400, 401, 403, 404 of more   nothing was done, and it will be the same the next time
    no connection                nothing was done; later
    everything else              408, 410, 5xx, reset, timeout, an answer that cannot be read: unknown
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.cosmos.exceptions import CosmosBatchOperationError

from outbox.azure.unsent import unsent
from outbox.errors import OutboxError, OutcomeUnknown, Refused, Throttled, TooLarge
from outbox.ports import Lost

FAILURES = (AzureError, aiohttp.ClientError, TimeoutError, OSError)
"""The exceptions of a failed call of the SDK."""

SESSION_HEADER = "x-ms-session-token"
BAD_REQUEST = 400
NOT_FOUND = 404
NOT_YET_READABLE = 1002
"""Sub-status of a read that cannot be as fresh as its session token."""
NO_CONTAINER = 1003
_LOSING = frozenset((404, 409, 412))
_LATER = frozenset((429, 449))
_NEVER = frozenset((400, 401, 403, 404, 405))
DEFAULT_PAUSE_S = 0.05


def status_of(error: BaseException) -> tuple[int, int]:
    """Status and sub-status of an error; 0 where there is none."""
    status, substatus = getattr(error, "status_code", None), getattr(error, "sub_status", None)
    return status if isinstance(status, int) else 0, substatus if isinstance(substatus, int) else 0


def headers_of(error: BaseException) -> Mapping[str, str]:
    """The headers of the answer that an error came with."""
    headers = getattr(error, "headers", None)
    return headers if isinstance(headers, Mapping) else {}


def as_lost(error: BaseException) -> Lost | None:
    """The lost condition that an error means; None where it means something else."""
    status, substatus = status_of(error)
    if status not in _LOSING or substatus in (NO_CONTAINER, NOT_YET_READABLE):
        return None
    index = error.error_index if isinstance(error, CosmosBatchOperationError) else 0
    return Lost(index or 0, None, headers_of(error).get(SESSION_HEADER, ""))


def as_error(error: BaseException, what: str) -> OutboxError:
    """Translate an error, other than a lost condition, into what may be concluded; `what` names the request."""
    status, substatus = status_of(error)
    if status in _LATER:
        return Throttled(f"{what}: throttled ({status}); try again later", retry_after_s=retry_after_s(error))
    if status == 413:
        return TooLarge(f"{what}: over what Cosmos DB takes (413); move large values to a blob")
    if status == NOT_FOUND and substatus == NOT_YET_READABLE:
        return Throttled(f"{what}: not yet as fresh as its session here; try again", retry_after_s=DEFAULT_PAUSE_S)
    if status == NOT_FOUND:
        return Refused(f"{what}: no such database or container; connect(..., create=True) makes them")
    if status in _NEVER or (isinstance(error, ClientAuthenticationError) and not status):
        return Refused(f"{what}: refused ({status or 'no credential'}); look at keys, roles and the container")
    if refusal := unsent(error, what, "Cosmos DB"):
        return refusal
    found = f"status {status}" if status else type(error).__name__
    return OutcomeUnknown(f"{what}: outcome unknown ({found}); read before acting on it")


def retry_after_s(error: BaseException) -> float:
    """How long an answer asks to wait."""
    if isinstance(error, CosmosBatchOperationError):
        responses: list[dict[str, Any]] = error.operation_responses or []
        pauses_ms = [_number(response.get("retryAfterMilliseconds")) for response in responses]
        if any(pauses_ms):
            return max(pauses_ms) / 1_000
    return _number(headers_of(error).get("x-ms-retry-after-ms")) / 1_000 or DEFAULT_PAUSE_S


def _number(value: object) -> float:
    try:
        return max(0.0, float(value))  # type: ignore[arg-type]  # whatever a server sends
    except (TypeError, ValueError):
        return 0.0
