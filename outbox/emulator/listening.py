"""Where an emulator may listen without a key of its own, what a key is, and how many connections there may be."""

from __future__ import annotations

import base64
import ipaddress
import resource

from outbox.errors import Refused

CONNECTION_COUNT_MAX = 512


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def key_bytes(key: str) -> bytes:
    """An account's key, base64, as bytes.

    Raises:
        Refused: it is not base64, or empty.
    """
    try:
        found = base64.b64decode(key, validate=True)
    except ValueError as error:
        raise Refused("the account key is not base64; give one such as WELL_KNOWN_KEY") from error
    if not found:
        raise Refused("the account key is empty; give one such as WELL_KNOWN_KEY")
    return found


def usual_count_max() -> int:
    """How many connections leave this process descriptors for all else: the log must find one for its next file."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTION_COUNT_MAX if soft == resource.RLIM_INFINITY else max(1, min(CONNECTION_COUNT_MAX, soft // 4))
