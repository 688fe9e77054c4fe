"""What each answer of Cosmos DB means to whoever asked: lost, refused, throttled for how long, or unknown."""

from __future__ import annotations

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceResponseError
from azure.cosmos.exceptions import CosmosBatchOperationError, CosmosHttpResponseError

from outbox.azure.cosmos.outcomes import DEFAULT_PAUSE_S, SESSION_HEADER, as_error, as_lost
from outbox.errors import OutboxError, OutcomeUnknown, Refused, Throttled, TooLarge
from outbox.ports import Lost

SESSION = {SESSION_HEADER: "0:7"}


def answered(status: int, substatus: int = 0, **headers: object) -> CosmosHttpResponseError:
    error = CosmosHttpResponseError(status, "no", sub_status=substatus or None)  # type: ignore[no-untyped-call]  # the SDK's
    error.headers = {name.replace("_", "-"): value for name, value in headers.items()} | SESSION
    return error


def batch(status: int, index: int | None = None, *pauses: object) -> CosmosBatchOperationError:
    responses = [{"statusCode": status, "retryAfterMilliseconds": pause} for pause in pauses]
    return CosmosBatchOperationError(index, SESSION, status, "no", responses)  # type: ignore[no-untyped-call]  # the SDK's


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (answered(404), Lost(0, None, "0:7")),
        (answered(409), Lost(0, None, "0:7")),
        (answered(412), Lost(0, None, "0:7")),
        (batch(412, 3), Lost(3, None, "0:7")),
        (batch(409, None), Lost(0, None, "0:7")),
        (answered(404, 1002), Throttled),  # not yet as fresh as the session
        (answered(404, 1003), Refused),  # there is no container
        (answered(400), Refused),
        (answered(401), Refused),
        (answered(403), Refused),
        (answered(405), Refused),
        (answered(413), TooLarge),
        (answered(429), Throttled),
        (answered(449), Throttled),
        (batch(429, 0), Throttled),
        (answered(408), OutcomeUnknown),
        (answered(500), OutcomeUnknown),
        (answered(503), OutcomeUnknown),
        (ClientAuthenticationError("no token"), Refused),
        (ServiceResponseError("no answer"), OutcomeUnknown),
        (TimeoutError(), OutcomeUnknown),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_failure_means_what_cosmos_db_documents(error: Exception, meant: Lost | type[OutboxError]) -> None:
    if isinstance(meant, Lost):
        assert as_lost(error) == meant
    else:
        assert as_lost(error) is None and type(as_error(error, "read of p/a")) is meant


@pytest.mark.parametrize(
    ("error", "pause_s"),
    [
        (answered(429, x_ms_retry_after_ms="250"), 0.25),
        (answered(429), DEFAULT_PAUSE_S),
        (answered(429, x_ms_retry_after_ms="soon"), DEFAULT_PAUSE_S),
        (answered(429, x_ms_retry_after_ms="-5"), DEFAULT_PAUSE_S),
        (batch(429, 0, 20, None, 300, 100), 0.3),  # the longest that one of them asks for
        (batch(429, 0, None, 0), DEFAULT_PAUSE_S),
        (batch(429, 0), DEFAULT_PAUSE_S),
    ],
)
def test_whoever_is_throttled_waits_as_long_as_the_answer_asks(error: Exception, pause_s: float) -> None:
    meant = as_error(error, "write")
    assert isinstance(meant, Throttled) and meant.retry_after_s == pause_s
