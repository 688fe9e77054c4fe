"""Pipelines on the command line: listed, asked as of the checkpoint, audited and run, with a host and without."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.errors import OutboxError, Refused
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.admins.store import stream_admin
from outbox.ops.shared.text import utc
from outbox.ops.streams import pipelines
from outbox.ops.streams.command import pipeline_text, pipelines_text
from outbox.ops.streams.logs import StreamPlace, on_engine
from outbox.ops.values.requests import Admin
from outbox.ops.values.streams import AuditPipeline, ReadPipelines, ReadPipelineState, Unregister
from outbox.ports import Create, Delete, DocumentKey, Replace
from outbox.streams import Emit, MapState, OrderedLog, Pipeline, Position
from outbox.streams.cells import Cell
from outbox.streams.pipeline.barrier import Names
from outbox.streams.pipeline.checkpoint import Chain, PipelineRegister
from outbox.streams.pipeline.figures import CELLS_COUNTED_MAX
from outbox.streams.register import RegisterCell
from tests.unit.ops.conftest import Cli
from tests.unit.ops.operators import on_folder
from tests.unit.streams.pipeline.counting import Change, Counting, Page

COUNTING = "tests.unit.streams.pipeline.counting:Counting"


# Direct and over HTTP


async def drained(engine: Engine, *texts: str, **options: Any) -> Counting:
    """A pipeline with a checkpoint behind these pages."""
    made = Counting(engine, **options)
    await made.write(*texts)
    await made.pipeline.run_until_idle(engine, seconds=10)
    return made


async def test_a_pipeline_is_as_far_as_its_register_and_its_logs_say(engine: Engine, admin: Admin) -> None:
    made = await drained(engine, "a b", "a", "b c")
    (view,) = await admin.ask(ReadPipelines())
    assert view.stands is not None and view.figures is not None
    assert (view.name, view.version, view.source, view.before) == ("index", 1, "log/pages/0.0", [])
    assert (view.stands.n, view.stands.c, view.stands.parts, [each.n for each in view.kept]) == (1, "3.0", 1, [0])
    assert (view.stands.sinks["changes"].next, view.stands.sinks["changes"].begin) == (1, "3.0")
    assert (view.figures.behind, view.figures.lag, view.figures.since_ms) == (0, 0, 0)
    assert (view.figures.released, view.figures.bundles) == ("3.0", {"changes": 5})
    await made.pages.extend([Page("a"), Page("b")], id="two")
    await made.write("c")
    replica = made.replica()
    await replica.begin()
    await replica.turn()  # without a checkpoint
    await made.write("d d")
    (view,) = await admin.ask(ReadPipelines("index"))
    assert view.stands is not None and view.figures is not None
    first = [entry async for entry in made.pages.read()][3]
    assert (view.stands.c, view.figures.behind, view.figures.since_ms) == ("3.0", 4, first.at_ms)
    assert (view.figures.lag, view.figures.released, view.figures.bundles) == (1, "5.0", {"changes": 3})
    assert "4 entries behind the checkpoint, 1 of them have not left" in pipeline_text(view)
    assert pipelines_text([view]).splitlines()[1].split()[-2:] == ["4", "1"]


async def test_of_a_cell_that_is_read_in_part_only_the_rest_is_behind(engine: Engine) -> None:
    made = Counting(engine)
    await made.pages.extend([Page("a"), Page("b"), Page("c")], id="three")
    replica = made.replica(entries_max=2)
    await replica.begin()
    await replica.turn()
    await replica.checkpoint()
    (view,) = await EngineAdmin(engine).ask(ReadPipelines())
    assert view.stands is not None and view.figures is not None
    assert (view.stands.c, view.figures.behind, view.figures.lag) == ("0.2", 1, 1)
    assert view.figures.since_ms > 1e12


async def test_entries_are_counted_up_to_a_limit_and_cells_behind_it(engine: Engine) -> None:
    made = await drained(engine, "a")
    for n in range(CELLS_COUNTED_MAX + 10):
        await made.pages.extend([Page("a"), Page("b")], id=f"n{n}")
    (view,) = await EngineAdmin(engine).ask(ReadPipelines())
    assert view.figures is not None and view.figures.behind == 2 * CELLS_COUNTED_MAX + 10


async def test_a_running_pipeline_says_how_far_it_is(engine: Engine) -> None:
    made = Counting(engine)
    await made.write("a b")
    async with made.pipeline.run(engine, checkpoint_s=60) as running:
        await running.until(await made.pages.end())
        figures = await running.figures()
        assert (figures.behind, figures.lag, figures.released, figures.bundles) == (1, 0, "1.0", {"changes": 2})


async def test_versions_before_are_listed_and_a_damaged_register_is_named(
    engine: Engine, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await drained(engine, "a")
    await made.write("a")
    replica = made.replica()
    await replica.begin()
    await replica.turn()  # without a checkpoint
    await drained(engine, "b", version=2)
    assert (await admin.ask(AuditPipeline("index"))).findings == []  # its older bundles are its own
    await engine.store().write([Create(DocumentKey("pipeline/broken", "register"), b"nonsense")])
    broken, index = await admin.ask(ReadPipelines())
    assert (index.version, index.before) == (2, [1]) and "restore it from a backup" in broken.error
    assert "broken: " in pipelines_text([broken, index]) and pipeline_text(broken).startswith("broken: ")
    with pytest.raises(LookupError, match="there is no pipeline 'inde' in this engine; there are: broken, index"):
        await admin.ask(ReadPipelines("inde"))
    monkeypatch.setattr(pipelines, "LISTED_MAX", 1)
    assert await admin.ask(ReadPipelines()) == [broken]
    assert pipelines_text([]) == "no pipelines"
    assert pipelines_text([msgspec.structs.replace(broken, name="\x1b[2J")]).isprintable()


async def test_a_state_is_that_of_the_checkpoint(engine: Engine, admin: Admin) -> None:
    made = await drained(engine, "a b", "a")
    await made.write("a")
    asked = ReadPipelineState("index", "count", "a")
    found = await admin.ask(asked)
    assert (found.n, found.c, msgspec.json.decode(found.value)) == (1, "2.0", {"n": 2})
    assert bytes((await admin.ask(ReadPipelineState("index", "count", "z"))).value) == b"null"
    assert bytes((await admin.ask(ReadPipelineState("index", "count", "1", "int"))).value) == b"null"
    await made.pipeline.run_until_idle(engine, seconds=10)
    assert msgspec.json.decode((await admin.ask(asked)).value) == {"n": 3}
    with pytest.raises(LookupError, match="has no states of 'words'; there are those of count"):
        await admin.ask(ReadPipelineState("index", "words", "a"))
    with pytest.raises(Refused, match="is not int"):
        await admin.ask(ReadPipelineState("index", "count", "a", "int"))
    await lose_parts(engine)
    with pytest.raises(OutboxError, match="of a checkpoint is missing"):
        await admin.ask(asked)


@dataclass
class Placed:
    """A state of which a checkpoint writes the members that changed."""

    pages: MapState[str, int] = field(default_factory=MapState)


def numbered(page: Page) -> int:
    return len(page.text)


def place(state: Placed, page: Page, emit: Emit[Change]) -> None:
    state.pages[page.text] = state.pages.get(page.text, 0) + 1
    emit(Change(page.text, state.pages[page.text]))


async def test_a_state_of_several_parts_is_put_together_without_its_code(engine: Engine) -> None:
    pages = OrderedLog("pages", engine, type=Page)
    pipeline = Pipeline("placed", source=pages)
    pipeline.sink(
        pipeline.reduce(source=pages, key=numbered, state=Placed)(place), OrderedLog("changes", engine, type=Change)
    )
    for round in range(4):
        for n in range(200 if round == 0 else 1):
            await pages.append(Page(f"{n:03}"), id=f"{round}.{n}")
        await pipeline.run_until_idle(engine, seconds=10)
    admin = EngineAdmin(engine)
    (view,) = await admin.ask(ReadPipelines())
    assert view.stands is not None and view.stands.parts > 1, "nothing was put together"
    found = msgspec.json.decode((await admin.ask(ReadPipelineState("placed", "place", "3", "int"))).value)
    assert len(found["pages"]) == 200 and found["pages"]["000"] == 4


# While it runs


class Busy:
    """Blobs whose first reads are each preceded by what `before` does."""

    def __init__(self, blobs: Any, before: Callable[[], Awaitable[Any]], count: int) -> None:
        self.blobs, self.before, self.left = blobs, before, count
        self.write, self.delete = blobs.write, blobs.delete

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        if self.left:
            self.left -= 1
            await self.before()
        found: bytes | None = await self.blobs.read(name, bytes_max=bytes_max)
        return found


class Listed(Busy):
    """The same, which can be listed, before that happens and behind it."""

    async def names(self, folder: str) -> AsyncIterator[str]:
        if self.left > 1:
            await self.before()
        async for name in self.blobs.names(folder):
            yield name
        if self.left == 1:
            await self.before()


def with_blobs(engine: Engine, blobs: Any) -> Admin:
    at = on_engine(engine)
    return stream_admin(StreamPlace(replace(at.place, blobs=blobs), at.listed, at.name))


async def busy(engine: Engine, count: int, kind: type[Busy] = Busy) -> tuple[Admin, Counting]:
    """An admin in whose reads a checkpoint takes the place of the one that stands, and its parts."""
    made = await drained(engine, "a b")
    replica = made.replica()
    await replica.begin()
    cell = RegisterCell(engine.store(), "pipeline/index", PipelineRegister, new_id=str)

    async def checkpoint() -> None:
        await made.write("a b")
        await replica.turn()
        assert await replica.checkpoint()
        known = await cell.read()
        assert known is not None
        for blob in {part.blob for each in known.register.kept for part in each.parts}:
            await engine.blobs.delete(blob)  # as if they had been kept for their time
        swapped = await cell.swap(known, msgspec.structs.replace(known.register, kept=()))
        replica.known = swapped
        await made.pages.row(0, 0).horizon.register(reader="pipeline/index", at=known.register.stands.c.index)

    return with_blobs(engine, kind(engine.blobs, checkpoint, count)), made


async def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_anew(engine: Engine) -> None:
    admin, _ = await busy(engine, 2)
    found = await admin.ask(ReadPipelineState("index", "count", "a"))
    assert (found.n, msgspec.json.decode(found.value)) == (3, {"n": 3})
    admin, _ = await busy(engine, 1_000)
    with pytest.raises(Refused, match="ask again"):
        await admin.ask(ReadPipelineState("index", "count", "a"))


async def test_a_pipeline_that_goes_on_makes_no_finding_and_leaves_nothing_over() -> None:
    for kind, count, left_over in ((Busy, 1, None), (Listed, 1, []), (Listed, 2, [])):
        async with Engine.in_memory() as engine:
            admin, _ = await busy(engine, count, kind)
            found = await admin.ask(AuditPipeline("index"))
            assert (found.findings, found.left_over) == ([], left_over)
            blobs = Busy(engine.blobs, partial(drained, engine, "c", version=2), 1)
            assert (await with_blobs(engine, blobs).ask(AuditPipeline("index"))).findings == []


# An audit


async def kept(engine: Engine) -> RegisterCell[PipelineRegister]:
    return RegisterCell(engine.store(), "pipeline/index", PipelineRegister, new_id=str)


async def changed(engine: Engine, change: Callable[[PipelineRegister], PipelineRegister]) -> None:
    """Change the register, as nothing in the product does."""
    cell = await kept(engine)
    known = await cell.read()
    assert known is not None
    assert await cell.swap(known, change(known.register)) is not None


async def put_bundle(engine: Engine, index: int, change: Callable[[Cell], Cell]) -> None:
    """Change a bundle, as nothing in the product does."""
    row = OrderedLog("changes", engine, type=Change).row(0, 0)
    document = await engine.store().read(row.cells.key(index))
    assert document is not None
    body = msgspec.json.encode(change(msgspec.json.decode(document.body, type=Cell)))
    await engine.store().write([Replace(document.key, body, document.version)])


async def removed(engine: Engine, log: str, index: int) -> None:
    document = await engine.store().read(OrderedLog(log, engine, type=Change).row(0, 0).cells.key(index))
    assert document is not None
    await engine.store().write([Delete(document.key, document.version)])


async def part_of(engine: Engine) -> str:
    known = await (await kept(engine)).read()
    assert known is not None
    return known.register.stands.parts[-1].blob


async def lose_parts(engine: Engine) -> None:
    known = await (await kept(engine)).read()
    assert known is not None
    for blob in known.register.blobs():
        await engine.blobs.delete(blob)


async def change_part(engine: Engine) -> None:
    blob = await part_of(engine)
    await engine.blobs.delete(blob)
    await engine.blobs.write(blob, b"{}")


async def write_between(engine: Engine) -> None:
    await OrderedLog("changes", engine, type=Change).append(Change("a", 1), id="mine")


async def lose_bundle(engine: Engine) -> None:
    await removed(engine, "changes", 1)


async def move_bundle(engine: Engine) -> None:
    def moved(cell: Cell) -> Cell:
        assert cell.until is not None
        begin = Position(7)
        known = Counting(engine).pipeline.plan()
        id = Names("index", 1, known.graph, "changes").id(begin, Position(9))
        return msgspec.structs.replace(cell, id=id, begin=begin, until=Position(9))

    await put_bundle(engine, 1, moved)


async def turn_bundle(engine: Engine) -> None:
    def turned(cell: Cell) -> Cell:
        assert cell.begin is not None
        known = Counting(engine).pipeline.plan()
        id = Names("index", 1, known.graph, "changes").id(cell.begin, cell.begin)
        return msgspec.structs.replace(cell, id=id, until=cell.begin)

    await put_bundle(engine, 2, turned)


async def trim_bundles(engine: Engine) -> None:
    changes = OrderedLog("changes", engine, type=Change)
    await changes.unregister("pipeline/index")
    assert await changes.trim(min_age=timedelta(0)) == 3


async def forget_reader(engine: Engine) -> None:
    await EngineAdmin(engine).ask(Unregister("pages", "pipeline/index"))


async def read_on(engine: Engine) -> None:
    await OrderedLog("pages", engine, type=Page).row(0, 0).horizon.register(reader="pipeline/index", at=3)


async def lose_source(engine: Engine) -> None:
    await removed(engine, "pages", 2)


async def lose_log(engine: Engine) -> None:
    for id in ("floor", "hint"):
        document = await engine.store().read(DocumentKey("log/changes/0.0", id))
        if document is not None:
            await engine.store().write([Delete(document.key, document.version)])


def chained(register: PipelineRegister, chain: Chain) -> PipelineRegister:
    stands = msgspec.structs.replace(register.stands, sinks={"changes": chain})
    return msgspec.structs.replace(register, stands=stands)


async def go_on_behind(engine: Engine) -> None:
    await changed(engine, lambda register: chained(register, Chain(9, Position(3))))


async def go_on_elsewhere(engine: Engine) -> None:
    await changed(engine, lambda register: chained(register, Chain(1, Position(0, 5))))


async def go_on_before(engine: Engine) -> None:
    def moved(register: PipelineRegister) -> PipelineRegister:
        (first,) = register.kept
        later = msgspec.structs.replace(first, sinks={"changes": Chain(1, Position(1))})
        return chained(msgspec.structs.replace(register, kept=(later,)), Chain(0, Position(0)))

    await changed(engine, moved)


async def leave_a_hole(engine: Engine) -> None:
    await changed(engine, lambda register: chained(register, Chain(3, Position(8))))


async def turn_back(engine: Engine) -> None:
    def turned(register: PipelineRegister) -> PipelineRegister:
        stands = register.stands
        chains, part = {"changes": Chain(2, Position(1, 5))}, msgspec.structs.replace(stands.parts[0], blob="none")
        before = msgspec.structs.replace(stands, n=0, c=Position(4), parts=(part,), sinks=chains)
        return msgspec.structs.replace(register, kept=(*register.kept, before, stands))

    await changed(engine, turned)


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (lose_parts, "of a checkpoint is missing"),
        (change_part, "is not the one that was written"),
        (write_between, "bundle 3 of log changes is none of this pipeline's"),
        (lose_bundle, "bundle 1 of log changes is missing"),
        (move_bundle, "bundle 1 of log changes begins at 7.0, and the one before it ends at 1.0"),
        (turn_bundle, "bundle 2 of log changes ends at 2.0, and begins at 2.0"),
        (trim_bundles, "log/changes/0.0 is trimmed up to 3, and checkpoint 0 needs it from 0 on"),
        (trim_bundles, "bundle 0 of log changes is trimmed"),
        (forget_reader, "trims of log/pages/0.0 wait for the pipeline not at all, and checkpoint 0 needs it from 0 on"),
        (read_on, "trims of log/pages/0.0 wait for the pipeline at 3, and checkpoint 0 needs it from 0 on"),
        (lose_source, "log changes covers its source up to 3.0, which ends at 2.0"),
        (lose_log, "log/changes/0.0 is not here"),
        (go_on_behind, "bundle 8 of log changes is missing"),
        (go_on_before, "checkpoint 1 goes on at bundle 0 of log changes, from 0.0 on, and there is none"),
        (go_on_elsewhere, "checkpoint 1 goes on at bundle 1 of log changes, from 0.5 on, and there is none"),
        (leave_a_hole, "checkpoint 1 is at 3.0, and goes on in log changes at 8.0: what is between is lost"),
        (turn_back, "checkpoint 1 at 3.0 follows 1 at 3.0"),
        (turn_back, "checkpoint 1 at 3.0 follows 0 at 4.0"),
        (turn_back, "checkpoint 0 goes on at bundle 2 of log changes, from 1.5 on, and there is none"),
        (turn_back, "part none of a checkpoint is missing"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
@pytest.mark.parametrize("at_once", [1, 16])
async def test_an_audit_finds_what_is_wrong(
    damage: Callable[[Engine], Awaitable[None]], finding: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "BUNDLES_READ", at_once)
    async with Engine.in_memory() as engine:
        made, admin = Counting(engine), EngineAdmin(engine)
        replica = made.replica()
        await replica.begin()
        for text in ("a b", "a", "c"):
            await made.write(text)
            await replica.turn()
        assert await replica.checkpoint()
        sound = await admin.ask(AuditPipeline("index"))
        assert (sound.n, sound.parts, sound.bundles, sound.findings, sound.left_over) == (1, 1, 3, [], [])
        await damage(engine)
        found = (await admin.ask(AuditPipeline("index"))).findings
        assert any(finding in text for text in found), found
        monkeypatch.setattr(pipelines, "FINDINGS_MAX", 1)
        assert len((await admin.ask(AuditPipeline("index"))).findings) == 1


async def test_where_blobs_cannot_be_listed_nothing_is_said_of_parts_left_over(engine: Engine, admin: Admin) -> None:
    await drained(engine, "a b")
    found = await admin.ask(AuditPipeline("index"))
    assert (found.parts, found.bundles, found.findings, found.left_over) == (1, 1, [], None)
    with pytest.raises(LookupError, match="there is no pipeline 'x'"):
        await admin.ask(AuditPipeline("x"))


async def test_parts_that_nothing_names_are_listed_where_blobs_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "LEFT_OVER_MAX", 1)
    async with Engine.in_memory() as engine:
        await drained(engine, "a b")
        for name in ("index/left", "index/more", "index2/other"):
            await engine.blobs.write(f"pipeline/{name}", b"")
        found = await EngineAdmin(engine).ask(AuditPipeline("index"))
        assert (found.findings, found.left_over) == ([], ["pipeline/index/left"])


# On a folder


@pytest.fixture
def three_pages(disk_path: Path) -> None:
    on_folder(disk_path, lambda engine: Counting(engine).write("a b", "a", "c"))


@pytest.mark.usefixtures("three_pages")
def test_a_pipeline_is_run_to_the_end_of_its_source_listed_asked_and_audited(cli: Cli) -> None:
    assert cli("pipeline", "list")[:2] == (0, "no pipelines\n")
    code, out, err = cli("pipeline", "run", COUNTING, "--until-idle", "--replicas", "2", "--release", "by-epoch")
    assert (code, out) == (0, "index: all below 3.0 of its source has left\n"), err
    assert json.loads(cli("pipeline", "run", COUNTING, "--until-idle", "--workers", "1", "--json")[1]) == {
        "name": "index",
        "released": "3.0",
    }
    lines = cli("pipeline", "list")[1].splitlines()
    assert lines[0].split()[:4] == ["pipeline", "version", "checkpoint", "at"]
    assert lines[1].split()[:4] == ["index", "1", "1", "3.0"] and lines[1].split()[-2:] == ["0", "0"]
    (listed,) = json.loads(cli("pipeline", "list", "--json")[1])
    assert json.loads(cli("pipeline", "status", "index", "--json")[1]) == listed
    text = cli("pipeline", "status", "index")[1]
    made, entries = utc(listed["stands"]["made_ms"] / 1_000), utc(listed["stands"]["time_ms"] / 1_000)
    assert (
        f"checkpoint 1 at 3.0: made {made}, time {entries}, " in text
        and "kept 0 at 0.0" in text
        and "last bundle in log changes: 4 items" in text
    )
    code, out, _ = cli("pipeline", "get", "index", "count", "a")
    assert (code, out.splitlines()[0]) == (0, "count a as of 3.0 of the source, checkpoint 1")
    assert json.loads(cli("pipeline", "get", "index", "count", "a", "--json")[1])["value"] == {"n": 2}
    assert cli("pipeline", "audit", "index")[:2] == (0, "index: checkpoint 1, 2 parts, 1 bundles\n")
    assert [each["name"] for each in json.loads(cli("pipeline", "audit", "--all", "--json")[1])] == ["index"]


@pytest.mark.usefixtures("three_pages")
def test_a_pipeline_without_a_chain_has_no_findings_and_goes_on_by_its_release_alone(cli: Cli, disk_path: Path) -> None:
    assert cli("pipeline", "run", COUNTING, "--until-idle", "--release", "at-least-once")[0] == 0
    on_folder(disk_path, write_between)
    assert cli("pipeline", "audit", "index")[:2] == (0, "index: checkpoint 1, 1 parts, 2 bundles\n")
    code, _, err = cli("pipeline", "run", COUNTING, "--until-idle")
    assert code == 1 and "at_least_once" in err


@pytest.mark.usefixtures("three_pages")
def test_an_audit_with_findings_is_refused(cli: Cli, disk_path: Path) -> None:
    assert cli("pipeline", "run", COUNTING, "--until-idle", "--release", "by-epoch")[0] == 0
    on_folder(disk_path, lose_parts)
    code, out, err = cli("pipeline", "audit", "--all")
    assert code == 1 and "  part pipeline/index/" in out and "2 findings;" in err


@pytest.mark.usefixtures("three_pages")
def test_a_run_ends_after_its_time_and_says_if_its_source_has_more(cli: Cli) -> None:
    assert cli("pipeline", "run", COUNTING, "--for-s", "0.3")[:2] == (
        0,
        "index: all below 3.0 of its source has left\n",
    )
    code, out, err = cli("pipeline", "run", f"{__name__}:Slow", "--until-idle", "--for-s", "0.1")
    assert (code, out) == (1, "") and "has not come to the end of its source in 0.1 s" in err and "goes on" in err


class Slow:
    """A pipeline that takes its time."""

    def __init__(self, place: Any) -> None:
        pages = OrderedLog("pages", place, type=Page)
        self.pipeline = Pipeline("slow", source=pages)
        self.pipeline.sink(self.pipeline.map(source=pages)(waited), OrderedLog("slowly", place, type=Page))


def waited(page: Page) -> Page:
    time.sleep(0.2)
    return page


def broken(place: Any) -> Pipeline:
    raise ValueError("no such table")


def nothing(place: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("tests.unit.streams.pipeline.counting:Pages", "is missing, not a Pipeline; name one, or a class or function"),
        ("tests.unit.streams.pipeline.counted:Counting", "check 'tests.unit.streams.pipeline.counted:Counting'"),
        (f"{__name__}:nothing", "is missing, not a Pipeline"),
        (f"{__name__}:broken", "broken(place) failed at "),
    ],
)
def test_a_pipeline_that_cannot_be_made_is_refused(cli: Cli, name: str, cure: str) -> None:
    code, out, err = cli("pipeline", "run", name, "--until-idle")
    assert (code, out) == (1, "") and cure in err.splitlines()[-1] and "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "takings"],
        ["run", COUNTING, "--replicas", "0"],
        ["run", COUNTING, "--checkpoint-s", "0"],
        ["run", COUNTING, "--for-s", "-1"],
        ["status", ""],
        ["get", "index", "count"],
        ["audit"],
        ["audit", "index", "--all"],
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(cli: Cli, arguments: list[str]) -> None:
    code, out, err = cli("pipeline", *arguments)
    assert (code, out) == (2, "") and "usage: outbox" in err and "Traceback" not in err


@pytest.mark.usefixtures("three_pages")
def test_a_pipeline_that_stands_still_ends_its_run(cli: Cli) -> None:
    code, out, err = cli("pipeline", "run", f"{__name__}:Failing", "--for-s", "20")
    assert (code, out) == (1, "") and "operator words fails on the entry at 0.0" in err.splitlines()[-1]


class Failing:
    """A pipeline of which an operator fails."""

    def __init__(self, place: Any) -> None:
        pages = OrderedLog("pages", place, type=Page)
        self.pipeline = Pipeline("failing", source=pages)
        made = self.pipeline.map(source=pages)(words)
        self.pipeline.sink(made, OrderedLog("failed", place, type=Change))


def words(page: Page) -> Change:
    raise ValueError(page.text)
