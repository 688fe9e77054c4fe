"""What was committed and not sent is listed with its reason, in every form that it has, and can be finished by hand."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from outbox import Worker, stored
from outbox.errors import Refused
from outbox.message import Message
from outbox.ops.cli.parser import main
from outbox.ops.messages import command, pending
from outbox.ops.messages.command import pending_text
from outbox.ops.messages.pending import finish, pending_in
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.values.messages import Finish, ListPending, PendingView
from outbox.ops.values.requests import Admin
from outbox.ports import Create, DocumentKey, Output, Tag
from outbox.runtime.commit.sweeper import GRACE_S
from outbox.stored import Overflow, Record, Staged, StateItem, overflow_key, record_key, staged_key, state_key
from tests.unit.ops.operators import store_site
from tests.unit.stores.store_site import Add, Site, adding, site

FORMS: dict[str, dict[str, Any]] = {
    "a record": {"scope": "partition"},
    "an entry of a ledger": {"scope": "partition", "ledger": True},
    "within a state": {"scope": "item"},
    "staged beside a state": {"scope": "item", "staged": True},
}


def over(at: Site) -> StoreSite:
    """A store and its bus as an admin has them at hand."""
    return StoreSite(at.ports(), *[cast(Any, None)] * 3)


async def crashed(at: Site) -> PendingView:
    """Let a worker commit a message and send nothing of it; what is pending then."""
    at.bus.is_mute = True
    worker = Worker(adding(), at, drain_s=0.2)
    await worker.declare()
    await worker.send("adds", Add("a", 5), id="m0")
    async with worker:
        async with asyncio.timeout(5):
            while not (found := [view for view in await pending_in(at.ports()) if _has_left_nothing(view)]):  # noqa: ASYNC110  # no event says that it is committed
                await asyncio.sleep(0.01)
    return found[0]


def _has_left_nothing(view: PendingView) -> bool:
    return "not known to have left" in view.why


@pytest.mark.parametrize("form", FORMS)
async def test_what_has_not_left_is_listed_and_leaves_by_hand(form: str) -> None:
    async with site(**FORMS[form]) as at:
        view = await crashed(at)
        assert view.tx and view.why.startswith("committed 0.0 s ago: 1 output not known to have left"), view
        assert [(output.destination, output.size_bytes > 0) for output in view.outputs] == [("told", True)]
        young = await finish(store_site(at.ports()), Finish(view.tx[:6]))
        assert (young.finished, young.young, young.left) == (0, 1, 0)
        at.clock.seconds += GRACE_S - 1
        assert (await finish(store_site(at.ports()), Finish(view.tx))).young == 1
        at.clock.seconds += 2
        failed = await finish(store_site(at.ports()), Finish(view.tx if form != "an entry of a ledger" else None))
        assert (failed.finished, failed.left) == (0, 1)
        assert "told: 1 not sent" in failed.troubles[0] and "nothing comes back" in failed.troubles[0]
        at.bus.is_mute = False
        views = [each for each in await pending_in(at.ports()) if each.tx == view.tx]
        assert [each.why.partition(": ")[0] for each in views] == ["committed 61.0 s ago"]
        done = await finish(store_site(at.ports()), Finish(None))
        assert done.left == 0 and done.troubles == []
        assert at.engine.broker.queue("told").counts()["active"] == 1
        assert [view for view in await pending_in(at.ports()) if view.outputs] == []
        with pytest.raises(LookupError, match="nothing is pending of"):
            await finish(store_site(at.ports()), Finish("no-such-tx"))


async def test_nothing_is_touched_where_no_application_was(at: Site) -> None:
    with pytest.raises(Refused, match="no application has ever started"):
        await finish(store_site(at.ports()), Finish(None))


PUSHES = Record("tx1", b"f", 5_000, pending=True, outputs=(Output("q", 0, Message(body=b"{}", outbox_id="m-0")),))
CASES: list[tuple[DocumentKey, Any, str]] = [
    (
        record_key("s", b"i"),
        Record("tx1", b"f", 5_000, pending=True, spilled="overflow/tx1/x"),
        "outputs in blob overflow",
    ),
    (staged_key("s", "tx1"), Staged("tx1", b"i", "s", 0, PUSHES), "if the swap of its state lands"),
    (state_key("s"), StateItem(msgspec.Raw(b"{}"), 1, 1, 5_000, pending="tx1"), "the state still points to it"),
    (overflow_key("s", "tx1"), Overflow("tx1", "overflow/tx1/x", b"i", "s", 0, 5_000), "announces blob overflow/tx1/x"),
]


@pytest.mark.parametrize(("key", "item", "words"), CASES)
async def test_other_forms_say_what_they_are(at: Site, key: DocumentKey, item: Any, words: str) -> None:
    await at.store.write([Create(key, stored.encode(item), tag=Tag("x"))])
    [view] = await pending_in(at.ports())
    assert (view.tx, words in view.why, view.document) == ("tx1", True, f"{key.partition}/{key.id}"), view


async def test_a_whole_name_is_no_beginning_of_another(at: Site) -> None:
    for tx in ("tx1", "tx12"):
        record = msgspec.structs.replace(PUSHES, tx=tx)
        await at.store.write([Create(record_key("s", tx.encode()), stored.encode(record), tag=Tag("x"))])
    assert await pending._full_tx(at.ports(), "tx1") == "tx1"


async def test_what_is_not_ours_is_named_and_left_alone(at: Site) -> None:
    await Worker(adding(), at).declare()
    async with Worker(adding(), at):
        pass
    for id in ("inbox:00", "another"):
        await at.store.write([Create(DocumentKey("p", id), b'{"pending": "x", "tx": 5}', tag=Tag("x"))])
    views = await pending_in(at.ports())
    assert all("is not of this framework" in view.why for view in views) and len(views) == 2
    done = await finish(store_site(at.ports()), Finish(None))
    assert (done.finished, done.left, len(done.troubles)) == (0, 2, 2)


async def test_a_list_ends_at_a_limit(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "PENDING_COUNT_MAX", 3)
    monkeypatch.setattr(pending, "OUTPUTS_SHOWN_MAX", 1)
    other = Output("q", 0, Message(body=b"{}", outbox_id="m-1"))
    two = Record("tx1", b"f", 5_000, pending=True, outputs=(*PUSHES.outputs, other))
    for n in range(5):
        await at.store.write([Create(record_key("s", bytes([n])), stored.encode(two), tag=Tag("x"))])
    found = await pending_in(at.ports())
    assert len(found) == 3 and found[0].more == 1
    assert [(each.id, each.destination) for each in found[0].outputs] == [("m-0", "q")]


async def test_a_prefix_of_several_transactions_finishes_none(at: Site) -> None:
    await Worker(adding(), at).declare()
    for n in (1, 2):
        record = Record(f"tx{n}", b"f", 5_000, pending=True, outputs=PUSHES.outputs)
        await at.store.write([Create(record_key("s", bytes([n])), stored.encode(record), tag=Tag("x"))])
    with pytest.raises(Refused, match="2 transactions begin with 'tx'"):
        await finish(store_site(at.ports()), Finish("tx"))
    assert len(await pending_in(at.ports())) == 2


async def test_on_an_engine_nothing_is_pending(admin: Admin) -> None:
    assert await admin.ask(ListPending()) == []
    assert (await admin.ask(Finish(None))).finished == 0
    with pytest.raises(LookupError, match="outputs commit with their message"):
        await admin.ask(Finish("tx"))


def test_as_text_each_has_a_line_and_one_has_all(disk_path: Path) -> None:
    view = PendingView("tx1", "s/inbox:00", 5.0, "committed 3.0 s ago: 1 output not known to have left")
    assert pending_text([view], in_full=False, on_engine=False).splitlines()[1].startswith("tx1  1970-01-01T00:00:05Z")
    assert pending_text([view], in_full=True, on_engine=False).startswith("tx1: committed 3.0 s ago")
    assert pending_text([], in_full=False, on_engine=False) == "nothing is pending"
    assert "nothing is ever pending on an engine" in pending_text([], in_full=False, on_engine=True)


def test_the_command_lists_those_that_begin_so(capsys: pytest.CaptureFixture[str]) -> None:
    class Knowing:
        async def ask(self, asked: ListPending) -> list[PendingView]:
            return [PendingView(tx, "s/inbox:00", 5.0, "") for tx in ("tx1", "tx2", "atx1")]

    def listed(tx: str | None) -> list[str]:
        connect = lambda options: nullcontext(Knowing())  # noqa: E731
        command.list_pending(Namespace(tx=tx, action="pending list", data=None, json=True, connect=connect))
        return [view["tx"] for view in json.loads(capsys.readouterr().out)]

    assert listed(None) == ["tx1", "tx2", "atx1"]
    assert listed("tx") == ["tx1", "tx2"] and listed("atx1") == ["atx1"]
    with pytest.raises(LookupError, match="nothing is pending of 'x1'"):
        listed("x1")


def test_the_command_wants_one_transaction_or_all(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pending", "finish", "--data", str(disk_path)])
    assert "name one TX, or give --all" in capsys.readouterr().err
