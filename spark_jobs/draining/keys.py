"""The identities in a table's data files: 8 sorted bytes a row in memory, 32 more on disk.

    _keys/<data file>.keys     header; rows x 8 bytes: hash, sorted; rows x 32 bytes: rest of identity, content

Theory of operation.  Ids are random, so neither partitions nor minima exclude a data file.  A file's hashes are read
once and kept; where one of them is asked for, the rest of the row's digests is read too, block by block, and tells an
equal hash from an equal identity (24 bytes in all), and an equal content from another (16).  So no data file is read.

Key files are derived: one that is missing, damaged or of another length than its data file is made anew from that
file.  Nothing reads more of one than a block at a time.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_jobs.common.places import Place
from spark_jobs.draining.judged import CONTENT_BYTES, IDENTITY_BYTES, Keyed
from spark_jobs.draining.parquet import DataFile, batches

KEYS = "_keys"
SUFFIX = ".keys"
MAGIC = b"outbox-keys-1\n\0\0"
HEADER = struct.Struct("<16sQII")
"""Magic, rows, and a checksum of each of the two parts that follow."""
HASH_BYTES, REST_BYTES = 8, IDENTITY_BYTES - 8 + CONTENT_BYTES
RECORD = np.dtype([("hash", "<u8"), ("rest", f"V{REST_BYTES}")])
BLOCK_ROWS = 500_000
LANE_COUNT = 8

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]
Positions = np.ndarray[tuple[int], np.dtype[np.int64]]
Records = np.ndarray[tuple[int], np.dtype[np.void]]


class DamagedKeysError(Exception):
    """A key file is not what it was written as; make it anew."""


@dataclass(slots=True)
class Known:
    """The identities in the data files of one table; keeps 8 bytes a row between two merges."""

    place: Place
    keyed: Keyed
    hashes: dict[str, Hashes] = field(default_factory=dict)

    def among(self, identities: Collection[bytes], files: Mapping[str, DataFile]) -> dict[bytes, bytes]:
        """The given identities that the files hold, each with its content."""
        wanted = set(identities)
        asked = np.unique(np.frombuffer(b"".join(identity[:HASH_BYTES] for identity in wanted), "<u8"))
        self._load(files)
        found: dict[bytes, bytes] = {}
        for name, file in files.items():
            positions = hits(self.hashes[name], asked)
            if len(positions):
                found |= self._looked_up(file, positions, wanted)
        return found

    def add(self, name: str, rows: pa.Table) -> None:
        """Write the key file of a data file that is about to be committed."""
        self.hashes[name] = self._write(name, self._records(rows))

    def _load(self, files: Mapping[str, DataFile]) -> None:
        """Have the hashes of these files, and of no others."""
        self.hashes = {name: held for name, held in self.hashes.items() if name in files}
        missing = [file for name, file in files.items() if name not in self.hashes]
        with ThreadPoolExecutor(LANE_COUNT) as pool:
            for file, held in zip(missing, pool.map(self._loaded, missing), strict=True):
                self.hashes[file.name] = held

    def _loaded(self, file: DataFile) -> Hashes:
        try:
            return read_hashes(self.place, key_file(file.name), file.rows)
        except DamagedKeysError:
            return self._rebuilt(file)

    def _rebuilt(self, file: DataFile) -> Hashes:
        parts = [self._records(batch) for batch in batches(self.place, file, self.keyed.columns)]
        return self._write(file.name, np.concatenate(parts) if parts else np.empty(0, RECORD))

    def _records(self, rows: pa.Table | pa.RecordBatch) -> Records:
        both = zip(self.keyed.identities(rows), self.keyed.contents(rows), strict=True)
        return np.frombuffer(b"".join(part for pair in both for part in pair), RECORD)

    def _write(self, name: str, records: Records) -> Hashes:
        data, hashes = encoded(records)
        file = key_file(name)
        if not self.place.create(file, data):
            self.place.delete(file)  # what is there is damaged, or somebody's who does the same
            self.place.create(file, data)
        return hashes

    def _looked_up(self, file: DataFile, positions: Positions, wanted: Collection[bytes]) -> dict[bytes, bytes]:
        """The identities at these places of a file; its key file is made anew where its second part is damaged."""
        try:
            rests = read_rests(self.place, key_file(file.name), positions)
        except DamagedKeysError:
            self.hashes[file.name] = self._rebuilt(file)
            rests = read_rests(self.place, key_file(file.name), positions)
        found = {}
        for hashed, rest in zip(self.hashes[file.name][positions].tolist(), rests, strict=True):
            identity = hashed.to_bytes(HASH_BYTES, "little") + rest[:-CONTENT_BYTES]
            if identity in wanted:
                found[identity] = rest[-CONTENT_BYTES:]
        return found


def key_file(name: str) -> str:
    """Where the keys of a data file lie."""
    return f"{KEYS}/{name}{SUFFIX}"


def data_file(name: str) -> str:
    """Whose keys lie in a file."""
    return name.removeprefix(f"{KEYS}/").removesuffix(SUFFIX)


def hits(held: Hashes, asked: Hashes) -> Positions:
    """The places of `held` whose value is one of `asked`; both are sorted."""
    if not len(held) or not len(asked):
        return np.empty(0, np.int64)
    if len(held) < len(asked):
        at = np.minimum(np.searchsorted(asked, held), len(asked) - 1)
        return np.flatnonzero(asked[at] == held)
    first, behind = np.searchsorted(held, asked, "left"), np.searchsorted(held, asked, "right")
    met = np.flatnonzero(behind > first)
    return np.concatenate([np.arange(first[n], behind[n]) for n in met]) if len(met) else np.empty(0, np.int64)


def encoded(records: Records) -> tuple[bytes, Hashes]:
    """The bytes of a key file, and its hashes in order."""
    ordered = records[np.argsort(records["hash"], kind="stable")]
    hashes = np.ascontiguousarray(ordered["hash"])
    first, second = hashes.tobytes(), ordered["rest"].tobytes()
    header = HEADER.pack(MAGIC, len(ordered), zlib.crc32(first), zlib.crc32(second))
    return header + first + second, hashes


def header_of(data: bytes | None) -> tuple[int, int, int]:
    """Rows of a key file, and the checksums of its parts.

    Raises:
        DamagedKeysError: it is missing or no key file.
    """
    if data is None or len(data) < HEADER.size or not data.startswith(MAGIC):
        raise DamagedKeysError
    _, rows, first, second = HEADER.unpack_from(data)
    return rows, first, second


def read_hashes(place: Place, file: str, rows: int | None) -> Hashes:
    """Read the sorted hashes of a data file of `rows` rows (None: not stated).

    Raises:
        DamagedKeysError: the file is missing, torn, changed, or of other rows.
    """
    data = place.read(file, 0, HEADER.size + (rows or 0) * HASH_BYTES)
    count, checksum, _ = header_of(data)
    if rows is None:
        data = place.read(file, 0, HEADER.size + count * HASH_BYTES)
    hashed = memoryview(data or b"")[HEADER.size :]
    if len(hashed) != count * HASH_BYTES or zlib.crc32(hashed) != checksum:
        raise DamagedKeysError
    return np.frombuffer(hashed, "<u8")


def read_rests(place: Place, file: str, positions: Positions) -> list[bytes]:
    """Read the bytes behind the hash, in the rows at these places.

    Raises:
        DamagedKeysError: the file is missing, torn or changed.
    """
    rows, _, checksum = header_of(place.read(file, 0, HEADER.size))
    found: list[bytes] = []
    running, start = 0, HEADER.size + rows * HASH_BYTES
    for first in range(0, rows, BLOCK_ROWS):
        count = min(BLOCK_ROWS, rows - first)
        data = place.read(file, start + first * REST_BYTES, count * REST_BYTES) or b""
        if len(data) != count * REST_BYTES:
            raise DamagedKeysError
        running = zlib.crc32(data, running)
        here = positions[(positions >= first) & (positions < first + count)] - first
        found += [data[at * REST_BYTES : (at + 1) * REST_BYTES] for at in here.tolist()]
    if running != checksum:
        raise DamagedKeysError
    return found
