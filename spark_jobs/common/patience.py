"""How long an executor bears with a broker that does not answer: bounded, jittered, and over with a clear text.

A host that is killed and started again is back within seconds; its clients keep what they hold and try again.  Every
success starts the time anew, so the limit bounds one outage and not the whole job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

PAUSE_MIN_S = 0.2
PAUSE_MAX_S = 5.0

RIGHTS_CURE = (
    "check the key, or give whoever signs in the role Azure Service Bus Data Sender (to receive: Data Receiver) on the "
    "queue"
)


class GaveUpError(Exception):
    """The outage lasted longer than the limit, or another attempt is of no use."""


@dataclass(slots=True)
class Patience:
    """Pauses between attempts; `limit_s` is the longest outage, `clock` monotonic seconds, `chance` within [0, 1)."""

    limit_s: float
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    chance: Callable[[], float]
    failures: int = field(default=0, init=False)
    _since_s: float = field(default=0.0, init=False)

    def succeeded(self) -> None:
        """An attempt worked; the next outage counts from its own first failure."""
        self.failures = 0

    def failed(self, error: Exception) -> None:
        """Pause before the next attempt.

        Raises:
            GaveUpError: there is no point in one, or the limit is reached.
        """
        text = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
        check_worthwhile(error, text)
        if not self.failures:
            self._since_s = self.clock()
        self.failures += 1
        waited_s = self.clock() - self._since_s
        pause_s = min(PAUSE_MAX_S, PAUSE_MIN_S * 2 ** min(self.failures - 1, 10)) * (0.5 + self.chance() / 2)
        if waited_s + pause_s > self.limit_s:
            raise GaveUpError(f"no success for {waited_s:.0f} s ({self.failures} attempts), last {text}") from error
        self.sleep(pause_s)


def check_worthwhile(error: Exception, text: str) -> None:
    """Refuse to try again where another attempt would meet the same.

    Raises:
        GaveUpError: it would.
    """
    from azure.servicebus import exceptions as sdk  # half a second, which tasks that send nothing do without

    if isinstance(error, sdk.ServiceBusAuthenticationError | sdk.ServiceBusAuthorizationError):
        raise GaveUpError(f"{text}; {RIGHTS_CURE}") from error
    fatal = sdk.MessageSizeExceededError | sdk.MessagingEntityDisabledError | sdk.MessagingEntityNotFoundError
    if isinstance(error, fatal):
        raise GaveUpError(text) from error
