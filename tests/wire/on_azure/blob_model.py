"""A model of Blob Storage in a few dictionaries: one container, what Azure documents of it, and nothing of HTTP.

It says what each drawn operation comes to, and was written from the documents' tables: what a lease allows in which
state is data here (`LEASING`, `USING`), where the emulator decides it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.wire.on_azure.blob_operations import Op, Result

MISMATCH, NOT_PRESENT = "LeaseIdMismatchWithLeaseOperation", "LeaseNotPresentWithLeaseOperation"
PRESENT, NOT_RENEWED = "LeaseAlreadyPresent", "LeaseIsBrokenAndCannotBeRenewed"
NOT_ACQUIRED, NOT_CHANGED = "LeaseIsBreakingAndCannotBeAcquired", "LeaseIsBreakingAndCannotBeChanged"

STATES = ("available", "leased", "breaking", "broken", "expired")
LEASING: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # under the lease's own id, and under another, in each of these states; empty is granted
    "acquire": (("", "", NOT_ACQUIRED, "", ""), ("", PRESENT, PRESENT, "", "")),
    "renew": ((MISMATCH, "", NOT_RENEWED, NOT_RENEWED, ""), (MISMATCH, MISMATCH, MISMATCH, MISMATCH, MISMATCH)),
    "change": (
        (NOT_PRESENT, "", NOT_CHANGED, NOT_PRESENT, NOT_PRESENT),
        (NOT_PRESENT, MISMATCH, MISMATCH, NOT_PRESENT, NOT_PRESENT),
    ),
    "release": ((MISMATCH, "", "", "", ""), (MISMATCH,) * 5),
    "break": ((NOT_PRESENT, "", "", "", ""),) * 2,
}
GONE, OTHER, MISSING = "LeaseNotPresentWith{}Operation", "LeaseIdMismatchWith{}Operation", "LeaseIdMissing"
USING: dict[str, tuple[str, ...]] = {
    "write under its id": (GONE, "", "", GONE, GONE),
    "write under another id": (GONE, OTHER, OTHER, GONE, GONE),
    "write under none": ("", MISSING, MISSING, "", ""),
}


class Refused(Exception):
    """What an operation is refused with."""

    def __init__(self, status: int, code: str) -> None:
        self.result = Result(status, code)


@dataclass
class Lease:
    """The lease of a blob or of the container; `id` None is available."""

    id: str | None = None
    duration_s: int = 0
    left_s: float = 0.0
    """Until it ends, or is broken."""
    is_broken: bool = False

    @property
    def state(self) -> str:
        if self.id is None:
            return "available"
        is_over = self.left_s <= 0
        if self.is_broken:
            return "broken" if is_over else "breaking"
        return "expired" if is_over and self.duration_s > 0 else "leased"

    def leasing(self, operation: str, id: str) -> None:
        codes = LEASING[operation][0 if id == self.id else 1]
        if code := codes[STATES.index(self.state)]:
            raise Refused(409, code)

    def used(self, id: str | None, owner: str, *, is_read: bool = False) -> None:
        """A use attempt; a lease that is over is gone after a write."""
        whose = "none" if id is None else "its id" if id == self.id else "another id"
        code = USING[f"write under {whose}"][STATES.index(self.state)]
        if code and not (is_read and id is None):
            raise Refused(412, code.format(owner))

    def end(self) -> None:
        if self.state in ("broken", "expired"):
            self.id = None


@dataclass
class Blob:
    """A blob as it was last written."""

    etag: int
    data: bytes = b""
    blocks: dict[str, bytes] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/octet-stream"
    lease: Lease = field(default_factory=Lease)

    @property
    def shown(self) -> Any:
        return self.etag, self.metadata, self.content_type, len(self.tags)


class BlobModel:
    """One container."""

    def __init__(self) -> None:
        self.is_there = False
        self.lease = Lease()
        self.blobs: dict[str, Blob] = {}
        self.staged: dict[str, dict[str, bytes]] = {}
        self._etag_count = 0

    def run(self, op: Op) -> Result:
        """What an operation comes to."""
        try:
            return Result(200, "", self._run(op))
        except Refused as refused:
            return refused.result

    def _run(self, op: Op) -> Any:
        if op.name == "wait":
            return self._pass(op.get("seconds"))
        if op.name == "create":
            if self.is_there:
                raise Refused(409, "ContainerAlreadyExists")
            self.is_there = True
            return None
        if not self.is_there:
            raise Refused(404, "ContainerNotFound")
        return getattr(self, f"_{op.name}")(op)

    def _pass(self, seconds: float) -> None:
        for lease in (self.lease, *(blob.lease for blob in self.blobs.values())):
            lease.left_s -= seconds

    def _fresh(self) -> int:
        self._etag_count += 1
        return self._etag_count - 1

    def _drop(self, op: Op) -> None:
        self.lease.used(None, "Container")
        self.is_there, self.lease, self.blobs, self.staged = False, Lease(), {}, {}

    # Conditions

    def _etag_of(self, op: Op) -> int:
        """The number that an operation's condition names; what was not issued yet is nobody's."""
        at = self._etag_count + op.get("etag", -1)
        return at if at >= 0 else -1

    def _blob(self, op: Op) -> Blob:
        if op.blob not in self.blobs:
            raise Refused(404, "BlobNotFound")
        return self.blobs[op.blob]

    def _read_blob(self, op: Op) -> Blob:
        condition = op.get("condition")
        if condition == "missing":
            raise Refused(400, "UnsatisfiableCondition")
        blob = self._blob(op)
        blob.lease.used(op.get("lease"), "Blob", is_read=True)
        if condition == "match" and blob.etag != self._etag_of(op):
            raise Refused(412, "ConditionNotMet")
        if condition == "none-match" and blob.etag == self._etag_of(op):
            raise Refused(304, "ConditionNotMet")
        return blob

    def _condition_of_write(self, op: Op, blob: Blob | None, *, creates: bool) -> None:
        condition = op.get("condition")
        is_own = blob is not None and blob.lease.id == op.get("lease") and blob.lease.state in ("leased", "breaking")
        if condition == "missing" and creates and blob is not None and not is_own:
            raise Refused(409, "BlobAlreadyExists")
        is_held = {
            "match": blob is not None and blob.etag == self._etag_of(op),
            "exists": blob is not None,
            "none-match": blob is None or blob.etag != self._etag_of(op),
        }
        if not is_held.get(condition, True):
            raise Refused(412, "ConditionNotMet")

    def _write_blob(self, op: Op) -> Blob:
        blob = self._blob(op)
        self._condition_of_write(op, blob, creates=False)
        blob.lease.used(op.get("lease"), "Blob")
        blob.lease.end()
        return blob

    def _replace(self, op: Op, fresh: Blob) -> int:
        """Write a blob anew, whose conditions and lease allow it."""
        old = self.blobs.get(op.blob)
        if old is not None:
            old.lease.end()
            fresh.lease = old.lease
        fresh.etag = self._fresh()
        fresh.metadata, fresh.tags = op.get("metadata"), op.get("tags")
        self.blobs[op.blob] = fresh
        self.staged.pop(op.blob, None)
        return fresh.etag

    def _check_replace(self, op: Op) -> Blob | None:
        old = self.blobs.get(op.blob)
        self._condition_of_write(op, old, creates=True)
        (Lease() if old is None else old.lease).used(op.get("lease"), "Blob")
        return old

    # Blobs

    def _put(self, op: Op) -> int:
        self._check_replace(op)
        return self._replace(op, Blob(0, op.get("data"), content_type=op.get("content_type") or Blob.content_type))

    def _read(self, op: Op) -> Any:
        blob = self._read_blob(op)
        first, length = op.get("range") or (0, None)
        if first >= len(blob.data) and op.get("range"):
            raise Refused(416, "InvalidRange")
        return blob.data[first : None if length is None else first + length], blob.shown

    def _head(self, op: Op) -> Any:
        blob = self._read_blob(op)
        return len(blob.data), blob.lease.state, blob.shown

    def _delete(self, op: Op) -> None:
        self._write_blob(op)
        del self.blobs[op.blob]
        self.staged.pop(op.blob, None)

    def _metadata(self, op: Op) -> int:
        blob = self._write_blob(op)
        blob.metadata, blob.etag = op.get("metadata"), self._fresh()
        return blob.etag

    def _headers(self, op: Op) -> int:
        blob = self._write_blob(op)
        blob.content_type, blob.etag = op.get("content_type") or Blob.content_type, self._fresh()
        return blob.etag

    def _tags(self, op: Op) -> Any:
        return self._read_blob(op).tags

    def _set_tags(self, op: Op) -> None:
        self._write_blob(op).tags = op.get("tags")

    # Blocks

    def _block(self, op: Op) -> None:
        blob = self.blobs.get(op.blob)
        (Lease() if blob is None else blob.lease).used(op.get("lease"), "Blob")
        self.staged.setdefault(op.blob, {})[op.get("id")] = op.get("data")

    def _commit(self, op: Op) -> int:
        old = self._check_replace(op)
        committed, staged = ({} if old is None else old.blocks), self.staged.get(op.blob, {})
        latest = committed | staged
        if not latest.keys() >= set(op.get("list")):
            raise Refused(400, "InvalidBlockList")
        blocks = [(id, latest[id]) for id in op.get("list")]
        data = b"".join(block for _, block in blocks)
        fresh = Blob(0, data, blocks=dict(blocks), order=tuple(id for id, _ in blocks))
        return self._replace(op, fresh)

    def _blocks(self, op: Op) -> Any:
        blob, staged = self.blobs.get(op.blob), self.staged.get(op.blob, {})
        if blob is None and not staged:
            raise Refused(404, "BlobNotFound")
        kind = op.get("kind")
        committed = [] if blob is None or kind == "uncommitted" else [(id, len(blob.blocks[id])) for id in blob.order]
        return [sorted(committed), sorted((id, len(data)) for id, data in staged.items() if kind != "committed")]

    # Leases

    def _lease_of(self, op: Op) -> tuple[Lease, int]:
        if op.name.endswith("_container"):
            return self.lease, -1
        blob = self._blob(op)
        self._condition_of_write(op, blob, creates=False)
        return blob.lease, blob.etag

    def _acquire(self, op: Op) -> Any:
        lease, etag = self._lease_of(op)
        lease.leasing("acquire", op.get("id"))
        lease.id, lease.duration_s, lease.is_broken = op.get("id"), op.get("duration"), False
        lease.left_s = lease.duration_s
        return lease.id, etag

    def _acquire_container(self, op: Op) -> None:
        self._acquire(op)

    def _renew(self, op: Op) -> Any:
        lease, _ = self._lease_of(op)
        lease.leasing("renew", op.get("id"))
        lease.left_s = lease.duration_s
        return lease.id

    def _change(self, op: Op) -> Any:
        lease, _ = self._lease_of(op)
        is_repeated = lease.id == op.get("to")
        lease.leasing("change", op.get("to") if is_repeated else op.get("id"))
        lease.id = op.get("to")
        return lease.id

    def _release(self, op: Op) -> None:
        lease, _ = self._lease_of(op)
        lease.leasing("release", op.get("id"))
        lease.id = None

    def _release_container(self, op: Op) -> None:
        self._release(op)

    def _break(self, op: Op) -> int:
        lease, _ = self._lease_of(op)
        lease.leasing("break", "")
        period, state = op.get("period"), lease.state
        if state in ("broken", "expired"):
            lease.is_broken = True
            return 0
        is_endless = state == "leased" and lease.duration_s < 0
        if is_endless:
            lease.left_s = period or 0
        elif period is not None:
            lease.left_s = min(lease.left_s, period)
        lease.is_broken = True
        return int(lease.left_s)

    # Lists

    def _find(self, op: Op) -> Any:
        wanted = {"pending": "1"} if "AND" not in op.get("where") else {"Color": "red"}
        return sorted(
            name
            for name, blob in self.blobs.items()
            if wanted.items() <= blob.tags.items() and blob.tags.get("pending", "") >= "1"
        )

    def _list(self, op: Op) -> Any:
        prefix, delimiter = op.get("prefix"), op.get("delimiter")
        names = set(self.blobs) | (set(self.staged) if op.get("uncommitted") else set())
        found: list[Any] = []
        for name in sorted(name for name in names if name.startswith(prefix)):
            head, slash, _ = name[len(prefix) :].partition(delimiter or "\0")
            if slash and delimiter:
                if prefix + head + slash not in found:
                    found.append(prefix + head + slash)
                continue
            blob = self.blobs.get(name, Blob(0))
            found.append((name, len(blob.data), blob.metadata, blob.tags))
        return found
