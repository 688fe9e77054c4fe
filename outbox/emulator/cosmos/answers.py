"""The answers to a request, and rejections with the status and substatus that the SDK knows."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from outbox.emulator import dialect

OK, CREATED, NO_CONTENT, MULTI_STATUS, NOT_MODIFIED = 200, 201, 204, 207, 304
BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, NOT_ALLOWED = 400, 401, 403, 404, 405
CONFLICT, GONE, PRECONDITION_FAILED, TOO_LARGE = 409, 410, 412, 413
FAILED_DEPENDENCY, THROTTLED, RETRY_WITH, ERROR, UNAVAILABLE = 424, 429, 449, 500, 503

CODES = {
    BAD_REQUEST: "BadRequest",
    UNAUTHORIZED: "Unauthorized",
    FORBIDDEN: "Forbidden",
    NOT_FOUND: "NotFound",
    NOT_ALLOWED: "MethodNotAllowed",
    408: "RequestTimeout",
    CONFLICT: "Conflict",
    GONE: "Gone",
    PRECONDITION_FAILED: "PreconditionFailed",
    TOO_LARGE: "RequestEntityTooLarge",
    FAILED_DEPENDENCY: "FailedDependency",
    THROTTLED: "TooManyRequests",
    RETRY_WITH: "RetryWith",
    ERROR: "InternalServerError",
    UNAVAILABLE: "ServiceUnavailable",
}

# Substatuses
KEY_MISMATCH = 1001
SESSION_NOT_AVAILABLE = 1002
OWNER_NOT_FOUND = 1003
CROSS_PARTITION = 1004
CONTAINER_RECREATED = 1024
STORAGE_FULL = 1014


@dataclass(slots=True)
class Answer(dialect.Answer):
    """An answer with a JSON body, and its price."""

    body: bytes = b""
    charge_ru: float = 0.0


class Rejection(dialect.Refusal):
    """A request that is not granted; nothing was written."""

    def __init__(self, status: int, text: str, *, substatus: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.substatus = substatus
        self.retry_after_s = retry_after_s

    def answer(self) -> Answer:
        """The rejection as the wire has it."""
        headers = {}
        if self.substatus:
            headers["x-ms-substatus"] = str(self.substatus)
        if self.retry_after_s or self.status == THROTTLED:
            headers["x-ms-retry-after-ms"] = str(round(self.retry_after_s * 1_000))
        body = msgspec.json.encode({"code": CODES.get(self.status, "Error"), "message": printable(self.text)})
        return Answer(self.status, headers, body, 1.0)


def bad(text: str, *, substatus: int = 0) -> Rejection:
    """A request that can never be granted as it stands."""
    return Rejection(BAD_REQUEST, text, substatus=substatus)


def unsupported(what: str) -> Rejection:
    """A request for something that the service has and the emulator has not."""
    return bad(f"{what} is not supported by this emulator; docs/emulator-compatibility.md lists what is")


def printable(text: str) -> str:
    """Text that came from outside, so that it can be encoded."""
    return text.encode("utf-8", "replace").decode()
