"""Leases of blobs and containers: their states, the operations on them, and access under one.

Pure: a lease, the time and what is asked for give another lease or a rejection.  A lease is available, leased,
breaking, broken or expired; what follows from state and operation is what Azure documents (Lease Blob, outcomes of
lease operations and of use attempts by lease state).

    acquire   available, broken, expired: leased; leased: only under its own id; breaking: refused
    renew     leased, expired: leased again; breaking, broken: refused
    change    leased: to the new id; repeated, it has the new one already
    release   by its id, in every state
    break     leased: breaking, or broken at once; breaking: sooner, never later; broken, expired: broken
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from outbox.emulator.blobs.catalog import Lease
from outbox.emulator.blobs.requests import Rejection, bad_header

State = Literal["available", "leased", "breaking", "broken", "expired"]
Owner = Literal["Blob", "Container"]

DURATION_MIN_S, DURATION_MAX_S, FOR_EVER_S = 15, 60, -1
BREAK_MAX_S = 60


def state_of(lease: Lease | None, now_ms: int) -> State:
    """The state of a lease at a time."""
    if lease is None:
        return "available"
    if lease.breaks_ms is not None:
        return "breaking" if now_ms < lease.breaks_ms else "broken"
    return "expired" if 0 < lease.ends_ms <= now_ms else "leased"


def acquire(lease: Lease | None, now_ms: int, *, id: str, duration_s: int) -> Lease:
    """A fresh lease, or one's own for longer.

    Raises:
        Rejection: 409.
    """
    state = state_of(lease, now_ms)
    if state == "breaking":
        raise Rejection("LeaseIsBreakingAndCannotBeAcquired" if lease and lease.id == id else "LeaseAlreadyPresent")
    if state == "leased" and lease is not None and lease.id != id:
        raise Rejection("LeaseAlreadyPresent")
    return _begun(id, duration_s, now_ms)


def renew(lease: Lease | None, now_ms: int, *, id: str) -> Lease:
    """The lease for another time of its length.

    Raises:
        Rejection: 409.
    """
    held = own(lease, id)
    if held.breaks_ms is not None:
        raise Rejection("LeaseIsBrokenAndCannotBeRenewed")
    return _begun(held.id, held.duration_s, now_ms)


def change(lease: Lease | None, now_ms: int, *, id: str, proposed: str) -> Lease:
    """The lease under another id.

    Raises:
        Rejection: 409.
    """
    state = state_of(lease, now_ms)
    if lease is None or state in ("broken", "expired"):
        raise Rejection("LeaseNotPresentWithLeaseOperation")
    if lease.id not in (id, proposed):
        raise Rejection("LeaseIdMismatchWithLeaseOperation")
    if state == "breaking":
        raise Rejection("LeaseIsBreakingAndCannotBeChanged")
    return Lease(proposed, lease.duration_s, lease.ends_ms)


def break_(lease: Lease | None, now_ms: int, *, period_s: int | None) -> tuple[Lease, int]:
    """The lease, broken from some time on, and how many seconds that is ahead.

    Raises:
        Rejection: 409, there is none.
    """
    state = state_of(lease, now_ms)
    if lease is None:
        raise Rejection("LeaseNotPresentWithLeaseOperation")
    if state in ("broken", "expired"):
        at_ms = now_ms if lease.breaks_ms is None else lease.breaks_ms
        return Lease(lease.id, lease.duration_s, lease.ends_ms, at_ms), 0
    end_ms = lease.breaks_ms if lease.breaks_ms is not None else lease.ends_ms or None
    left_ms = None if end_ms is None else end_ms - now_ms
    wanted_ms = None if period_s is None else period_s * 1_000
    # without a period a lease breaks when it would have ended, one without an end at once; a period never adds time
    ahead_ms = min((ms for ms in (left_ms, wanted_ms) if ms is not None), default=0)
    return Lease(lease.id, lease.duration_s, lease.ends_ms, now_ms + ahead_ms), -(-ahead_ms // 1_000)


def check_write(lease: Lease | None, now_ms: int, id: str, owner: Owner) -> Lease | None:
    """The lease after a write under this id; an expired one is gone by then.

    Raises:
        Rejection: 412.
    """
    state = state_of(lease, now_ms)
    if id:
        check_read(lease, now_ms, id, owner)
    elif state in ("leased", "breaking"):
        raise Rejection("LeaseIdMissing")
    return lease if state in ("leased", "breaking") else None


def check_read(lease: Lease | None, now_ms: int, id: str, owner: Owner) -> None:
    """Let a read pass that names no lease, or the one that there is.

    Raises:
        Rejection: 412.
    """
    if not id:
        return
    if lease is None or state_of(lease, now_ms) in ("broken", "expired"):
        raise Rejection(f"LeaseNotPresentWith{owner}Operation")
    if lease.id != id:
        raise Rejection(f"LeaseIdMismatchWith{owner}Operation")


def shown(lease: Lease | None, now_ms: int) -> dict[str, str]:
    """A lease as headers and listings have it: state, status and, of one that holds, its kind."""
    state = state_of(lease, now_ms)
    found = {"State": state, "Status": "locked" if state in ("leased", "breaking") else "unlocked"}
    if lease is not None and state == "leased":
        found["Duration"] = "infinite" if lease.duration_s == FOR_EVER_S else "fixed"
    return found


def read_id(text: str, header: str) -> str:
    """Read a lease id, a GUID in any of its usual forms, into the form of answers.

    Raises:
        Rejection: 400.
    """
    try:
        return str(UUID(text))
    except ValueError as error:
        raise bad_header(header, "a lease id is a GUID") from error


def read_duration(text: str) -> int:
    """Seconds of a lease, -1 for one without an end.

    Raises:
        Rejection: 400.
    """
    if text == str(FOR_EVER_S):
        return FOR_EVER_S
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and DURATION_MIN_S <= int(text) <= DURATION_MAX_S):
        raise bad_header("x-ms-lease-duration", f"{DURATION_MIN_S} to {DURATION_MAX_S} seconds, or -1")
    return int(text)


def read_period(text: str) -> int | None:
    """Seconds until a lease is broken; None without a header.

    Raises:
        Rejection: 400.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and int(text) <= BREAK_MAX_S):
        raise bad_header("x-ms-lease-break-period", f"0 to {BREAK_MAX_S} seconds")
    return int(text)


def own(lease: Lease | None, id: str) -> Lease:
    """The lease of this id, which may give it back.

    Raises:
        Rejection: 409, there is none, or it is another's.
    """
    if lease is None or lease.id != id:
        raise Rejection("LeaseIdMismatchWithLeaseOperation")
    return lease


def _begun(id: str, duration_s: int, now_ms: int) -> Lease:
    return Lease(id, duration_s, 0 if duration_s == FOR_EVER_S else now_ms + duration_s * 1_000)
