"""The former name of `outbox.verify.recorded.definitions`."""

from outbox.verify.recorded.definitions import decide as decide
from outbox.verify.recorded.definitions import is_commutative as is_commutative
from outbox.verify.recorded.definitions import is_deterministic as is_deterministic
