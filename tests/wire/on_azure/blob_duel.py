"""Blob Storage's emulator beside Azurite: the same drawn operations through the real SDK.

    python -m tests.wire.on_azure.blob_duel [--seeds 20] [--first 0] [--steps 60]

Statuses, error codes and contents must be the same.  Azurite has a clock of its own, so nothing is waited for.  Not
compared is what `is_skipped` and `is_known` say.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Sequence
from contextlib import contextmanager

from azure.storage.blob.aio import BlobLeaseClient, BlobServiceClient

from outbox.emulator.blobs.server import BlobEmulator
from outbox.engine.engine import Engine
from tests.wire.on_azure import azurite
from tests.wire.on_azure.blob_operations import CONTAINER, Op, Result, Side, drawn

LEASING = ("acquire", "renew", "change", "release", "break")


def client(connection: str) -> BlobServiceClient:
    return BlobServiceClient.from_connection_string(connection, retry_total=0)


async def against_azurite(connection: str, seed: int, step_count: int) -> int:
    """Do drawn operations on the emulator and on Azurite; how many were granted.

    Raises:
        AssertionError: they differ.
    """
    chance, said = random.Random(seed), list[str]()
    async with (
        Engine.in_memory() as engine,
        BlobEmulator(engine, port=0) as emulator,
        client(emulator.connection.connection_string) as emulated,
        client(connection) as service,
    ):
        side, other = Side(emulated), Side(service)
        await clear(other)
        for op in (Op("create"), *(drawn(chance) for _ in range(step_count))):
            if is_skipped(op, emulator):
                continue
            theirs, ours = await other.run(op), await side.run(op)
            if theirs == ours or not is_known(op, theirs, ours):
                compare(seed, op, said, azurite=theirs, emulator=ours)
    return sum(line.endswith("-> 200") for line in said)


async def clear(side: Side) -> None:
    """Remove what an earlier duel left."""
    async for found in side.service.list_containers():
        if found.name == CONTAINER and found.lease.state == "leased":
            await BlobLeaseClient(side.container).break_lease(0)
    await side.run(Op("drop"))


def compare(seed: int, op: Op, said: list[str], **results: Result) -> None:
    """Let a step pass in which both sides say the same."""
    (one, first), (two, second) = results.items()
    if first != second:
        way = "\n".join(said[-25:])
        raise AssertionError(f"seed {seed}, {op}:\n  {one}: {first}\n  {two}: {second}\nafter\n{way}")
    said.append(f"{op.name} {op.blob} {dict(op.options)} -> {first.status}")


def is_skipped(op: Op, emulator: BlobEmulator) -> bool:
    """Whether Azurite is known to do otherwise than is documented, after which nothing could be compared.

    It takes the id of a lease for a blob that is not there, and a range that begins just behind the end; blocks that
    are not committed outlive a Put Blob, and are a blob for leases and for If-None-Match.  It refuses what Microsoft's
    recorded tests want: a write under the lease that a blob has and If-None-Match: *.
    """
    held = emulator.store.containers.get(CONTAINER)
    if held is None:
        return False
    is_missing = op.blob not in held.blobs
    if held.uncommitted.get(op.blob):
        return op.name not in ("block", "blocks", "commit", "list") or (is_missing and op.get("condition") is not None)
    if op.get("range") is not None and not is_missing and op.get("range")[0] == held.blobs[op.blob].size_bytes:
        return True
    if op.name in ("put", "commit") and op.get("condition") == "missing" and op.get("lease") is not None:
        return True
    return op.get("lease") is not None and is_missing


def is_known(op: Op, theirs: Result, ours: Result) -> bool:
    """Whether two answers differ as is known.

    Which of several reasons is named, where a lease, a condition and a list of blocks are all wrong, is not documented.
    What is not there is a 404 for us, whatever ETag is asked for, and a 412 for Azurite.  Its clock runs, so a lease
    that is broken may have a second less.
    """
    if op.name == "break" and theirs.status == ours.status == 200:
        return bool(ours.content - 1 <= theirs.content <= ours.content)
    are_both = theirs.status >= 300 and ours.status >= 300
    reasons = [op.get("lease"), op.get("condition"), op.get("list"), op.name in LEASING or None]
    is_one_of_several = sum(reason is not None for reason in reasons) > 1
    is_missing = (theirs.code, ours.code) == ("ConditionNotMet", "BlobNotFound")
    return are_both and (is_one_of_several or is_missing)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args(argv)
    differing = 0
    with contextmanager(azurite.start)() as connection:
        for seed in range(options.first, options.first + options.seeds):
            try:
                granted = asyncio.run(against_azurite(connection, seed, options.steps))
                print(f"seed {seed}: {granted} operations granted", flush=True)
            except AssertionError as error:
                differing += 1
                print(error, flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
