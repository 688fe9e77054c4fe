"""Where an emulator may listen without a key of its own, and how many connections it takes."""

from __future__ import annotations

import ipaddress
import resource

CONNECTION_COUNT_MAX = 512


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def usual_count_max() -> int:
    """How many connections leave this process descriptors for all else: the log must find one for its next file."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTION_COUNT_MAX if soft == resource.RLIM_INFINITY else max(1, min(CONNECTION_COUNT_MAX, soft // 4))
