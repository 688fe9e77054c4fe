"""The outcomes of failures of the Service Bus SDK.

lock or session lost, message not found, settled before    LockLost: nothing was settled, or it had been
too large                                                  TooLarge
server busy, quota                                         Throttled: nothing was done
no connection                                              Unreachable: nothing was done
no such entity, disabled, not allowed                      Refused; of a destination UnknownDestination
everything else                                            OutcomeUnknown
"""

from __future__ import annotations

from azure.core.exceptions import AzureError
from azure.servicebus._pyamqp.error import AMQPException
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from outbox.azure.unsent import unsent
from outbox.errors import LockLost, OutboxError, OutcomeUnknown, Refused, Throttled, TooLarge, UnknownDestination

FAILURES = (AzureError, AMQPException, TimeoutError, OSError, ValueError, AttributeError, RuntimeError, LookupError)
"""The exceptions of a failed call of the SDK.

The last four where a link is closed under it, by another call that failed at the same time; an AMQPException where the
SDK does not translate what its own protocol raises: from what is asked of a link directly, and while it closes one.
"""

BUSY_PAUSE_S = 4.0

_LOST = (
    MessageAlreadySettled,
    MessageLockLostError,
    MessageNotFoundError,
    SessionLockLostError,
    SessionCannotBeLockedError,
)
_MISSING = (MessagingEntityNotFoundError, MessagingEntityDisabledError)
_FORBIDDEN = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)


def as_error(error: BaseException, what: str, *, sends: bool = False, settles: bool = False) -> OutboxError:
    """Translate a failure into what may be concluded; `what` names the request.

    A settlement is tried in two ways by the SDK: that the second found no connection says nothing of the first.
    """
    if isinstance(error, OutboxError):
        return error
    if isinstance(error, _LOST):
        return LockLost(f"{what}: the lock is not ours any more; the message is redelivered, or was settled")
    if isinstance(error, MessageSizeExceededError):
        return TooLarge(f"{what}: larger than the link takes; send a reference to a blob")
    if isinstance(error, ServiceBusServerBusyError | ServiceBusQuotaExceededError):
        return Throttled(f"{what}: {type(error).__name__}; try again later", retry_after_s=BUSY_PAUSE_S)
    if isinstance(error, _MISSING):
        text = f"{what}: no such queue, topic or subscription, or it is disabled; connect(..., create=True) makes them"
        return UnknownDestination(text) if sends else Refused(text)
    if isinstance(error, _FORBIDDEN):
        return Refused(f"{what}: not allowed ({type(error).__name__}); look at keys and roles")
    if not settles and (refusal := unsent(error, what, "Service Bus")):
        return refusal
    return OutcomeUnknown(f"{what}: outcome unknown ({type(error).__name__})")
