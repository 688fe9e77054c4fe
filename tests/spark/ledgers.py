"""Ledgers for tests: what lands, who dies where, and two readers that share nothing with what wrote them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_jobs.common.places import joined, place_of
from spark_jobs.draining import leftovers
from spark_jobs.draining.keys import KEYS
from spark_jobs.draining.merging import DATA, LANDING
from spark_jobs.draining.parquet import encoded
from spark_jobs.draining.received import ROW
from spark_jobs.ledger import ledger_files


def land(
    ledger: Path | str,
    name: str,
    *ids: str,
    body: str = "{}",
    fingerprint: str = "f",
    first: int = 0,
    created_ms: int | None = None,
) -> None:
    """Land a file as a receiver does."""
    land_rows(
        ledger,
        name,
        [
            {"message_id": id, "body": body, "fingerprint": fingerprint, "sequence_number": n, "delivery_count": 0}
            | {"created_ms": created_ms}
            for n, id in enumerate(ids, first)
        ],
    )


def land_rows(ledger: Path | str, name: str, rows: Sequence[dict[str, Any]]) -> None:
    place = place_of(str(ledger), os.environ) / LANDING
    assert place.create(f"{name}.parquet", encoded(pa.Table.from_pylist(list(rows), schema=ROW)))


def land_texts(ledger: Path | str, name: str, *texts: tuple[str, str], first: int = 0) -> None:
    """Land a file with these identities and bodies."""
    rows = [
        {"message_id": id, "body": body, "fingerprint": body, "sequence_number": number, "delivery_count": 0}
        for number, (id, body) in enumerate(texts, first)
    ]
    land_rows(ledger, name, rows)


def by_log(table: Path | str) -> list[dict[str, Any]]:
    """The rows of a table, by nothing but JSON and Parquet: every entry of its log from the first on."""
    place, files = place_of(str(table), os.environ), dict[str, dict[str, Any]]()
    for entry in place.list("_delta_log/", ".json"):
        for line in (place.read(entry.name) or b"").splitlines():
            action = json.loads(line)
            if "add" in action:
                files[unquote(action["add"]["path"])] = action["add"]
            if "remove" in action:
                del files[unquote(action["remove"]["path"])]
    rows: list[dict[str, Any]] = []
    for name, add in files.items():
        data = place.read(name) or b""
        found = pq.read_table(io.BytesIO(data)).to_pylist()
        assert (json.loads(add["stats"])["numRecords"], add["size"]) == (len(found), len(data))
        rows += found
    return rows


def ids(ledger: Path | str) -> list[str]:
    """The identities of a ledger, as two readers of it agree on them."""
    place = place_of(str(ledger), os.environ)
    table = DeltaTable(place.uri, storage_options=place.storage_options())
    by_delta = table.to_pyarrow_dataset().to_table(["message_id"]).column(0).to_pylist()
    found = sorted(row["message_id"] for row in by_log(ledger))
    assert found == sorted(by_delta)
    return found


def conflicts(ledger: Path | str) -> list[tuple[str, str]]:
    """Identity and body of each conflict; none without a table of them."""
    return sorted((row["message_id"], row["body"]) for row in by_log(joined(str(ledger), "/_conflicts")))


def landed(ledger: Path | str) -> list[str]:
    place = place_of(str(ledger), os.environ) / LANDING
    return [item.name.removesuffix(".parquet") for item in place.list(suffix=".parquet")]


def nothing_else_is_left(ledger: Path | str) -> None:
    """Behind a vacuum there is no data or key file of which no version knows."""
    place = place_of(str(ledger), os.environ)
    leftovers.sweep(place, age_s=-5.0)  # blobs are dated by the second
    named = {*ledger_files(str(ledger))}
    assert {item.name for item in place.list(f"{DATA}/")} == named
    assert {item.name for item in place.list(f"{KEYS}/")} <= {f"{KEYS}/{name}.keys" for name in named}


class Died(BaseException):
    """A process is gone."""


def dies_at(wanted: str) -> Callable[[str], None]:
    def crash(point: str) -> None:
        if point == wanted:
            raise Died

    return crash


def older_form(ledger: Path) -> None:
    """A ledger as builds before Delta wrote it: versions 1 and 2, a conflict, consumed and waiting landing files."""
    for name, rows in {
        "data/00000001-x-0/part-0.parquet": (("a", "1"), ("b", "1")),
        "data/00000002-y-0/part-0.parquet": (("c", "1"),),
        "_conflicts/00000002-y-0/part-0.parquet": (("a", "2"),),
        "data/00000002-lost-0/part-0.parquet": (("c", "1"),),
    }.items():
        (ledger / name).parent.mkdir(parents=True)
        found = [{"message_id": id, "body": body, "fingerprint": f"f{body}", "sequence_number": 1} for id, body in rows]
        pq.write_table(pa.Table.from_pylist(found, schema=ROW), ledger / name)
    land(ledger, "merged", "a", "b", body="1", fingerprint="f1")
    land(ledger, "waiting", "c", "d", body="1", fingerprint="f1")
    (ledger / "_log").mkdir()
    commits = (
        {"add": ["data/00000001-x-0/part-0.parquet"], "conflicts": [], "consumed": ["merged.parquet"], "rows": 2},
        {
            "add": ["data/00000002-y-0/part-0.parquet"],
            "conflicts": ["_conflicts/00000002-y-0/part-0.parquet"],
            "consumed": ["gone.parquet"],
            "rows": 1,
        },
    )
    for version, commit in enumerate(commits, 1):
        (ledger / "_log" / f"{version:020}.json").write_text(json.dumps({"version": version, **commit}))
