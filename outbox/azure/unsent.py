"""Failures that prove that a request never left: its connection was refused, or its host has no address.

They are found among the causes of what an SDK raises, whose own class is the same for a request that never left and for
one whose answer was lost.  A reset and a timeout prove nothing.
"""

from __future__ import annotations

from socket import gaierror

from outbox.errors import Unreachable

PAUSE_S = 0.5
"""How long to wait before the next try: a service that restarts is back in seconds."""
_DEPTH_MAX = 10


def was_never_sent(error: BaseException) -> bool:
    """Whether no connection was made for what failed; the SDKs try nothing twice here."""
    cause: object = error
    for _ in range(_DEPTH_MAX):
        if isinstance(cause, ConnectionRefusedError | gaierror):
            return True
        # azure-core and Service Bus keep the failure, pyamqp what the socket raised; a context may be an older failure
        inner = getattr(cause, "inner_exception", None) or getattr(cause, "inner_error", None)
        cause = inner or getattr(cause, "__cause__", None)
    return False


def unsent(error: BaseException, what: str, service: str) -> Unreachable | None:
    """The error of a failure that proves that nothing was sent; None where it does not."""
    if not was_never_sent(error):
        return None
    text = f"{what}: no connection to {service}; nothing was sent, and another try is safe"
    return Unreachable(text, retry_after_s=PAUSE_S)
