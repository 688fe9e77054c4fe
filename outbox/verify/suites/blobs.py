"""The contract of a `BlobStore`: write-once bytes under names."""

from __future__ import annotations

from collections.abc import Sequence

from outbox.errors import TooLarge
from outbox.ports import BlobStore
from outbox.verify.suites.clauses import Clause, Make, check, promise

LIMIT = 1 << 20


async def check_blob_store(make: Make[BlobStore], *, clauses: Sequence[Clause[BlobStore]] | None = None) -> None:
    """Check a blob store; `make` gives an empty one.

    Raises:
        AssertionError: a promise is broken.
    """
    await check(make, BLOB_STORE if clauses is None else clauses)


async def a_blob_is_read_as_it_was_written(blobs: BlobStore) -> None:
    for name, data in (("a", bytes(range(256))), ("empty", b""), ("claims/x/y.z", b"x" * 100_000)):
        promise(await blobs.write(name, data) is True, f"writing {name!r} where nothing is did not give True")
        promise(await blobs.read(name, bytes_max=LIMIT) == data, f"{name!r} is not read as it was written")


async def what_was_never_written_is_none(blobs: BlobStore) -> None:
    promise(await blobs.read("a", bytes_max=LIMIT) is None, "a blob is read that was never written")


async def a_blob_is_written_once(blobs: BlobStore) -> None:
    data = b"first"
    await blobs.write("a", data)
    for again in (b"second", data):
        promise(await blobs.write("a", again) is False, f"writing {again!r} over a blob that exists did not give False")
        promise(await blobs.read("a", bytes_max=LIMIT) == data, "a blob was changed by a second write")


async def what_was_written_does_not_change_with_its_source(blobs: BlobStore) -> None:
    source = bytearray(b"first")
    await blobs.write("a", source)  # type: ignore[arg-type]  # a caller may have a bytearray
    source[:] = b"other"
    promise(
        await blobs.read("a", bytes_max=LIMIT) == b"first", "a blob changed with the buffer that it was written from"
    )


async def names_are_apart_and_stay_inside(blobs: BlobStore) -> None:
    names = ["a", "A", "a/b", "a_b", "../a", "/a", "a/../b", "é", "a ", "x" * 500]
    for name in names:
        promise(await blobs.write(name, name.encode()), f"{name[:20]!r} is taken for another name")
    for name in names:
        promise(await blobs.read(name, bytes_max=LIMIT) == name.encode(), f"{name[:20]!r} holds another name's bytes")


async def a_blob_over_the_readers_limit_is_refused(blobs: BlobStore) -> None:
    await blobs.write("a", b"12345")
    promise(await blobs.read("a", bytes_max=5) == b"12345", "a blob of just the limit was not read")
    try:
        await blobs.read("a", bytes_max=4)
    except TooLarge:
        return
    promise(False, "a blob over the reader's limit was handed out")


async def a_deleted_blob_is_gone_and_its_name_free(blobs: BlobStore) -> None:
    await blobs.delete("a")
    await blobs.write("a", b"1")
    await blobs.delete("a")
    promise(await blobs.read("a", bytes_max=LIMIT) is None, "a deleted blob is read")
    promise(await blobs.write("a", b"2"), "the name of a deleted blob is taken")


BLOB_STORE: tuple[Clause[BlobStore], ...] = (
    a_blob_is_read_as_it_was_written,
    what_was_never_written_is_none,
    a_blob_is_written_once,
    what_was_written_does_not_change_with_its_source,
    names_are_apart_and_stay_inside,
    a_blob_over_the_readers_limit_is_refused,
    a_deleted_blob_is_gone_and_its_name_free,
)
"""The clauses of a blob store's contract, each a promise by its name."""
