"""The benchmark of a pipeline's history: its log and its export, the local run, and its table."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bench_catch_up import LAST, View, fill, run_local, table
from outbox.engine.engine import Engine
from spark_jobs.common.places import Folder
from spark_jobs.exporting.files import exported


async def test_orders_are_exported_in_four_pieces_and_summed(disk_path: Path) -> None:
    await fill(disk_path, 700, 5)
    found = exported(Folder(disk_path / "log"))
    assert [file.rows for file in found.files] == [100, 600, LAST, LAST] and str(found.end) == "5.0"
    local = await run_local(disk_path)
    async with Engine.open(disk_path / "live") as engine:
        assert len([each async for each in View(engine).totals.read()]) == 700 + 2 * LAST
    spark = local | {"session_s": 1.0, "first_s": 2.0, "last_s": 1.0, "floor_s": 0.5, "jvm_mb": 4.0}
    text = table(700, [local, spark | {"last_on_spark_s": 3.0}])
    assert ": 1.00 s in the driver, 3.00 s on Spark; an empty job takes 0.50 s: 2.0x and 6.0x" in text
