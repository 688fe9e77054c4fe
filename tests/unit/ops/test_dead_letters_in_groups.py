"""Dead letters by the hundred: which are meant, which went wrong alike, and resubmitting up to the first relapse."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from outbox.app import App
from outbox.deliveries import STACK_HEAD
from outbox.engine.engine import Engine
from outbox.errors import OutcomeUnknown, Refused
from outbox.message import Message
from outbox.ops.admins import engine as engine_admin
from outbox.ops.cli.parser import make_parser
from outbox.ops.dead_letters import command
from outbox.ops.dead_letters import groups as dead_letters
from outbox.ops.dead_letters.command import dead_letters_text, groups_text
from outbox.ops.dead_letters.groups import error_of, found_in, grouped, queues_with_dead_letters, raised_at
from outbox.ops.dead_letters.views import TypeNames, matches, view_of
from outbox.ops.values.dead_letters import (
    DeadLetterFilter,
    DeadLetterView,
    Discard,
    DiscardSome,
    FindDead,
    ListDeadLetters,
    Moved,
    Resubmit,
)
from outbox.ops.values.requests import Admin
from outbox.ports import DeadLetterEntry
from outbox.retries import Reject, Retries
from outbox.worker import Worker
from tests.unit.messages import Seen
from tests.unit.ops.conftest import Cli
from tests.unit.ops.operators import operator

IS_DOWN = {"pricing": True}


@dataclass
class Order:
    id: str
    how: str


def made() -> App:
    app = App("shop", retry=Retries(limit=1))

    @app.handler("orders", key="id")
    def order(order: Order, seen: Seen) -> None:
        act(order)

    @app.handler("refunds", key="id")
    def refund(order: Order, seen: Seen) -> None:
        act(order)

    return app


def act(order: Order) -> None:
    if order.how == "price" and IS_DOWN["pricing"]:
        raise ConnectionError(f"no answer for {order.id}")
    if order.how == "none":
        raise Reject("nothing ordered")
    if order.how == "zero":
        print(1 // 0)


APP = made()
SENT = {"orders": ["price", "price", "price", "none", "zero"], "refunds": ["price", "none"]}


@asynccontextmanager
async def buried(folder: Path) -> AsyncIterator[Engine]:
    """An engine with the dead letters of what was sent, and its worker."""
    IS_DOWN["pricing"] = True
    async with Engine.open(folder) as engine, Worker(APP, engine) as worker:
        for queue, hows in SENT.items():
            for n, how in enumerate(hows):
                await worker.send(queue, Order(f"{queue}-{n}", how), id=f"{queue}-{n}")
        await worker.wait_idle(timeout_s=20)
        yield engine


@pytest.fixture
async def admin(disk_path: Path, way: str) -> AsyncIterator[Admin]:
    async with buried(disk_path) as engine, operator(engine, disk_path, way) as admin:
        yield admin


async def ids(admin: Admin, *queues: str, **where: Any) -> list[str]:
    return [letter.id for letter in await found_in(admin, queues or ("orders",), DeadLetterFilter(**where))]


async def test_a_filter_means_those_that_fit_all_of_it(admin: Admin) -> None:
    assert await queues_with_dead_letters(admin) == ["orders", "refunds"]
    assert len(await ids(admin, "refunds", "orders")) == 7  # of each queue from its first
    assert await ids(admin, reason="failed") == ["orders-0", "orders-1", "orders-2", "orders-4"]
    assert await ids(admin, reason="failed", text="no answer") == ["orders-0", "orders-1", "orders-2"]
    assert await ids(admin, text='"how":"zero"') == ["orders-4"]  # in the body
    assert await ids(admin, text="print(1 // 0)") == ["orders-4"]  # in the stack
    assert await ids(admin, text="nothing ordered") == ["orders-3"]  # a handler's own reason
    assert await ids(admin, exception="ConnectionError") == ["orders-0", "orders-1", "orders-2"]
    assert await ids(admin, exception="ZeroDivisionError", handler="order") == ["orders-4"]
    assert await ids(admin, exception="Zero") == [] == await ids(admin, handler="refund")
    assert await ids(admin, type="Order") != [] and await ids(admin, type="Refund") == []
    now_s = time.time()
    assert await ids(admin, since=now_s + 60) == [] == await ids(admin, before=now_s - 3_600)
    assert len(await found_in(admin, ["orders", "refunds"], DeadLetterFilter(), 6)) == 6


def dead(**more: Any) -> DeadLetterEntry:
    message = Message(
        body=b'{"text": "in the body"}', outbox_id="m", type="T", created_ms=2_000, session_id="k", correlation_id="c"
    )
    why = f"shop.NoStock: none{STACK_HEAD}the stack"
    entry = DeadLetterEntry("q", 7, message, "failed", why, delivery_count=8, enqueued_ms=5_000)
    return msgspec.structs.replace(entry, **more)


def test_each_field_of_a_dead_letter_is_shown_under_its_name() -> None:
    expected = DeadLetterView(
        id="m", sequence=7, queue="q", reason="failed", description="shop.NoStock: none", type="T", delivery_count=8,
        created=2.0, key="k", correlation_id="c", size_bytes=23, handled_as="T",
        traceback=f"{STACK_HEAD.lstrip()}the stack",
    )  # fmt: skip
    assert view_of("m", dead(), "Only") == expected
    foreign = dead(message=msgspec.structs.replace(dead().message, type="", created_ms=0))
    shown = msgspec.structs.replace(expected, type="", handled_as="Only", created=5.0)
    assert view_of("m", foreign, "Only") == shown


@pytest.mark.parametrize(
    ("where", "is_meant"),
    [
        ({}, True),
        ({"reason": "failed"}, True),
        ({"reason": "fail"}, False),
        ({"type": "T"}, True),
        ({"type": "U"}, False),
        ({"handler": "takes_t"}, True),
        ({"handler": "takes_u"}, False),
        ({"exception": "NoStock"}, True),
        ({"exception": "shop.NoStock"}, True),
        ({"exception": "shop"}, False),
        ({"since": 5.0}, True),
        ({"since": 5.001}, False),
        ({"before": 5.001}, True),
        ({"before": 5.0}, False),
        ({"text": "the stack"}, True),
        ({"text": "in the body"}, True),
        ({"text": "nowhere"}, False),
    ],
)
def test_each_condition_of_a_filter_is_asked_of_its_own_field(where: dict[str, Any], is_meant: bool) -> None:
    types = TypeNames({"takes_t": frozenset({"T"}), "takes_u": frozenset({"U"})})
    assert matches(dead(), DeadLetterFilter(**where), types) is is_meant


def test_without_a_type_a_message_is_of_the_only_one() -> None:
    one, two = TypeNames({"a": frozenset({"T"})}), TypeNames({"a": frozenset({"T"}), "b": frozenset({"U"})})
    assert (one.only, two.only, TypeNames({}).only) == ("T", "", "")
    bare = dead(message=msgspec.structs.replace(dead().message, type=""))
    assert matches(bare, DeadLetterFilter(type="T"), one) and not matches(bare, DeadLetterFilter(type="T"), two)


async def test_each_option_is_a_condition_of_its_own() -> None:
    asked = list[ListDeadLetters]()

    class Asked:
        async def ask(self, one: ListDeadLetters) -> list[DeadLetterView]:
            asked.append(one)
            return []

    words = "--reason r --type t --handler h --exception e --text s --older 7d --newer 30d"
    options = make_parser().parse_args(["dead-letters", "list", "q", "--data", "x", *words.split()])
    now_s = time.time()
    await command._dead_letters(cast(Any, Asked()), options)
    [where] = [each.where for each in asked]
    since_s, before_s = where.since - now_s, where.before - now_s
    assert (round(since_s / 86_400), round(before_s / 86_400)) == (-30, -7)
    assert msgspec.structs.replace(where, since=0, before=1e11) == DeadLetterFilter(
        reason="r", type="t", handler="h", exception="e", text="s"
    )


async def test_many_are_moved_at_the_pace_and_for_as_long_as_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    given, limits = list[dict[str, Any]](), list[int | None]()

    async def moved(admin: Admin, letters: Any, **more: Any) -> Any:
        given.append(more)
        return dead_letters.MovedGroup(1, 0)

    async def found(admin: Admin, queues: Any, where: Any, count_max: Any) -> Any:
        limits.append(count_max)
        return [view_of("m", dead(), "")]

    for name, double in (("found_in", found), ("resubmit_all", moved), ("discard_all", moved)):
        monkeypatch.setattr(dead_letters, name, double)
    pace = ("resubmit q --reason r --rate 5", "discard q --reason r --rate 5", "discard q --all --limit 2 --for-good")
    for words in pace:
        options = make_parser().parse_args(["dead-letters", *words.split(), "--data", "x"])
        options.connect = lambda options: nullcontext(None)
        await asyncio.to_thread(options.work, options)
    assert given == [{"a_second": 5.0}, {"a_second": 5.0, "for_good": False}, {"a_second": None, "for_good": True}]
    assert limits == [None, None, 2], "a limit is one of all too"


async def test_the_first_that_was_left_says_why() -> None:
    class Refusing:
        async def ask(self, asked: Any) -> Any:
            if isinstance(asked, FindDead):
                return {}
            raise Refused(f"{asked.id} was too old")

    letters = [view_of(id, dead(), "") for id in ("m1", "m2")]
    moved = await dead_letters.resubmit_all(cast(Any, Refusing()), letters, a_second=None)
    assert (moved.count, moved.left, moved.why) == (0, 2, "m1 was too old")

    class RefusingAll:
        async def ask(self, asked: DiscardSome) -> Any:
            raise Refused(f"{asked.queue} is not there")

    moved = await dead_letters.discard_all(cast(Any, RefusingAll()), letters, a_second=None)
    assert (moved.count, moved.left, moved.why) == (0, 2, f"{letters[0].queue} is not there")


async def test_a_copy_that_is_refused_is_left_and_one_that_went_along_is_not() -> None:
    gone = map(LookupError, ("m is gone", "n is gone"))
    errors = iter([None, LookupError("m has no dead letter 8"), Refused("m was too old"), *gone])

    class Moving:
        async def ask(self, asked: Any) -> Any:
            if isinstance(asked, FindDead):
                return {}
            if (error := next(errors)) is not None:
                raise error
            return Moved(2)

    letters = [view_of("m", dead(sequence=number), "") for number in (7, 8, 9)]
    letters += [view_of("m", dead(queue="other", sequence=9), ""), view_of("n", dead(sequence=10), "")]
    moved = await dead_letters.resubmit_all(cast(Any, Moving()), letters, a_second=None)
    assert (moved.count, moved.left, moved.why) == (2, 3, "m was too old")


async def test_dead_letters_of_several_queues_are_discarded_in_their_own() -> None:
    asked = list[tuple[str, list[int]]]()

    class Discarding:
        async def ask(self, one: DiscardSome) -> Moved:
            asked.append((one.queue, one.sequences))
            return Moved(len(one.sequences), numbers=one.sequences)

    letters = [view_of("m", dead(queue=queue, sequence=n), "") for n, queue in enumerate("aabba")]
    moved = await dead_letters.discard_all(cast(Any, Discarding()), letters, a_second=None)
    assert asked == [("a", [0, 1]), ("b", [2, 3]), ("a", [4])] and (moved.count, moved.left) == (5, 0)


async def test_more_than_a_batch_are_found_known_and_discarded_in_several(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()

    class Noting:
        async def ask(self, asked: Any) -> Any:
            sizes.extend([len(asked.sequences)] if isinstance(asked, DiscardSome) else [])
            return await admin.ask(asked)

    monkeypatch.setattr(dead_letters, "BATCH_COUNT_MAX", 2)
    found, noting = await found_in(admin, ["orders", "refunds"], DeadLetterFilter()), cast("Admin", Noting())
    relapses = dead_letters._Relapses(admin)
    await relapses.know(found)
    for letter in found:
        relapses.watch(letter.queue, letter.id)
    assert len(relapses._known) == len(found) == 7 and len(relapses._watched) == 2
    for some, a_second in ((found[:3], 1_000.0), (found[2:], None)):  # one of them is gone by then
        await dead_letters.discard_all(noting, some, a_second=a_second)
    assert sizes == [2, 1, 2, 1, 2] and await ids(admin, "orders", "refunds") == []


def test_a_group_is_from_its_first_to_its_last_and_a_number_tells_only_one_ids_letters_apart() -> None:
    messages = [msgspec.structs.replace(dead().message, created_ms=at_ms) for at_ms in (2_000, 1_000, 3_000, 2_000)]
    [group] = grouped(alike := [view_of("m", dead(message=each), "") for each in messages])
    assert (group.first, group.last) == (1.0, 3.0)
    apart = [msgspec.structs.replace(alike[0], queue=queue) for queue in "ab"]
    assert "number" not in dead_letters_text("", apart, named=True) and "number" in dead_letters_text("q", alike)


async def test_what_went_wrong_alike_is_one_group(admin: Admin) -> None:
    groups = grouped(await found_in(admin, ["orders", "refunds"], DeadLetterFilter()))
    assert [(g.queue, g.reason, g.error, g.count) for g in groups[:1]] == [("orders", "failed", "ConnectionError", 3)]
    assert groups[0].example == "orders-2" and Path(__file__).name in groups[0].at
    assert {(g.queue, g.error, g.count) for g in groups[1:]} == {
        ("orders", "rejected by the handler", 1),
        ("orders", "ZeroDivisionError", 1),
        ("refunds", "ConnectionError", 1),
        ("refunds", "rejected by the handler", 1),
    }
    shown = groups_text(groups).splitlines()
    assert len(shown) == 6 and shown[1].startswith("3") and groups_text([]) == "no dead letters"


async def test_resubmitting_stops_at_the_first_that_comes_back(admin: Admin) -> None:
    letters = await found_in(admin, ["orders"], DeadLetterFilter(text="no answer"))
    moved = await dead_letters.resubmit_all(admin, letters, a_second=1.0)
    assert (moved.count, moved.left, moved.relapsed) == (1, 2, "orders-0")
    assert len(await ids(admin)) == 5
    moved = await dead_letters.resubmit_all(admin, letters[2:], a_second=None)
    assert (moved.count, moved.relapsed) == (1, "orders-2")  # the last is waited for
    IS_DOWN["pricing"] = False
    letters = await found_in(admin, ["orders"], DeadLetterFilter(text="no answer"))
    moved = await dead_letters.resubmit_all(admin, letters, a_second=None)
    assert (moved.count, moved.left, moved.relapsed) == (3, 0, "")
    assert await ids(admin) == ["orders-3", "orders-4"]


async def test_a_pace_is_kept_and_what_has_gone_meanwhile_is_left(admin: Admin) -> None:
    letters = await found_in(admin, ["orders"], DeadLetterFilter())
    await admin.ask(Discard("orders", "orders-3"))
    began_s = time.monotonic()
    moved = await dead_letters.discard_all(admin, letters, a_second=2.0)
    assert (moved.count, moved.left, moved.relapsed) == (4, 1, "") and "orders-3" in moved.why
    assert time.monotonic() - began_s >= 4 / 2
    assert await ids(admin) == [] and len(await ids(admin, "refunds")) == 2


async def test_an_error_of_the_backend_breaks_off_and_says_what_was_done_before(admin: Admin) -> None:
    letters = await found_in(admin, ["orders"], DeadLetterFilter())

    class Failing:
        def __init__(self) -> None:
            self.moved: list[int] = []

        async def ask(self, asked: Any) -> Any:
            if isinstance(asked, DiscardSome):
                if len(self.moved) == 2:
                    await admin.ask(DiscardSome(asked.queue, asked.sequences[:1]))
                    raise OutcomeUnknown("no answer")
                self.moved += asked.sequences
            return await admin.ask(asked)

    failing: Any = Failing()
    moved = await dead_letters.discard_all(failing, letters, a_second=2.0)
    assert (moved.count, moved.left, moved.is_broken_off, moved.why) == (3, 2, True, "no answer")
    assert len(await ids(admin)) == 2


@pytest.mark.parametrize("refused_count", [0, 2])
async def test_resubmitting_is_broken_off_at_an_error_and_counts_all_that_are_left(
    admin: Admin, refused_count: int
) -> None:
    letters = await found_in(admin, ["orders"], DeadLetterFilter())
    errors = iter([None, *[Refused("too old")] * refused_count, OutcomeUnknown("no answer")])

    class Failing:
        async def ask(self, asked: Any) -> Any:
            if isinstance(asked, Resubmit) and (error := next(errors)) is not None:
                raise error
            return await admin.ask(asked)

    failing: Any = Failing()
    moved = await dead_letters.resubmit_all(failing, letters, a_second=None)
    assert (moved.count, moved.left, moved.is_broken_off, moved.why) == (1, 4, True, "no answer")


@pytest.mark.parametrize(("every_s", "moved_count"), [(0.0, 1), (60.0, 2)])
async def test_an_error_of_a_look_for_relapses_breaks_off_and_says_what_was_done_before(
    every_s: float, moved_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([True])

    class Failing:
        async def ask(self, asked: Any) -> Any:
            if isinstance(asked, FindDead) and not next(looks, False):
                raise OutcomeUnknown("no answer")
            return {} if isinstance(asked, FindDead) else Moved(1)

    monkeypatch.setattr(dead_letters, "LOOK_EVERY_S", every_s)  # between them, or behind the last
    letters = [view_of(f"m{number}", dead(sequence=number), "") for number in (7, 8)]
    moved = await dead_letters.resubmit_all(cast(Any, Failing()), letters, a_second=None)
    assert (moved.count, moved.left) == (moved_count, 2 - moved_count)
    assert moved.is_broken_off and moved.why == "no answer"


def letter(description: str, traceback: str = "", reason: str = "failed") -> DeadLetterView:
    known: dict[str, Any] = {"id": "a", "sequence": 1, "queue": "q", "type": "", "delivery_count": 1, "created": 0.0}
    known |= {"key": "", "correlation_id": "", "size_bytes": 1, "reason": reason}
    return DeadLetterView(**known, description=description, traceback=traceback)


def test_an_error_is_told_by_its_class_and_the_line_that_raised_it() -> None:
    stack = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n  File "b.py", line 9, in g\n'
    assert raised_at(letter("x", stack + 'caused by KeyError\n  File "c.py", line 1, in h\n')) == "b.py:9"
    assert raised_at(letter("x")) == ""
    assert error_of(letter("app.errors.NoPrice: item 7: gone\nmore")) == "app.errors.NoPrice"
    assert error_of(letter("two words: 7")) == "two words: 7" and error_of(letter("")) == ""
    assert error_of(letter("KeyError: 7", reason="too-old")) == "KeyError: 7"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["resubmit", "orders"], "name one ID, or say which"),
        (["resubmit", "orders", "o1", "--reason", "failed"], "ID names one dead letter; leave --reason out"),
        (["discard", "orders", "o1", "--all"], "ID names one dead letter; leave --all out"),
        (["resubmit", "orders", "--all", "--rate", "0"], "no rate"),
        (["list", "orders", "--older", "soon"], "no duration"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments: list[str], why: str, cli: Cli) -> None:
    code, _, err = cli("dead-letters", *arguments)
    assert code == 2 and why in err


@pytest.mark.parametrize(
    ("which", "looks"),
    [(["orders-0"], False), (["--all"], False), (["--all", "--rate", "100"], True), (["--text", "nothing"], True)],
)
def test_what_looks_for_a_relapse_is_what_the_help_says(
    which: list[str], looks: bool, disk_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    async def prepare() -> None:
        async with Engine.open(disk_path) as engine, Worker(APP, engine) as worker:
            await worker.send("orders", Order("orders-0", "none"), id="orders-0")
            await worker.wait_idle(timeout_s=20)

    looked, among = list[str](), engine_admin.ANSWERS[FindDead]

    async def spied(at: Any, asked: FindDead) -> Any:
        looked.append(asked.queue)
        return await among(at, asked)

    asyncio.run(prepare())
    monkeypatch.setitem(cast(dict[Any, Any], engine_admin.ANSWERS), FindDead, spied)
    monkeypatch.setattr(dead_letters, "RELAPSE_WITHIN_S", 0.0)
    assert cli("dead-letters", "resubmit", "orders", *which)[0] == 0
    assert bool(looked) is looks
    said = " ".join(cli("dead-letters", "resubmit", "--help")[1].split())
    assert "by a filter or --rate up to the first that comes back, else without a look back" in said


def test_the_commands_list_groups_and_move_what_is_meant(disk_path: Path, cli: Cli) -> None:
    async def prepare() -> None:
        async with buried(disk_path):
            pass

    def outbox(*arguments: str, code: int = 0) -> str:
        ended, out, err = cli("dead-letters", *arguments)
        assert ended == code
        return out + err

    asyncio.run(prepare())
    everything = outbox("list").splitlines()
    assert len(everything) == 8 and everything[0].startswith("queue") and everything[7].startswith("refunds")
    assert len(json.loads(outbox("list", "--reason", "failed", "--limit", "2", "--json"))) == 2
    assert msgspec.json.decode(outbox("list", "--group", "--json"))[0]["count"] == 3
    assert outbox("resubmit", "orders", "--text", "nothing at all", code=1).startswith(
        "outbox: no dead letter of orders"
    )
    assert outbox("discard", "orders", "--reason", "rejected", "--limit", "5", code=1)
    assert outbox("discard", "orders", "--text", "1 // 0", "--for-good") == "discarded 1 of orders\n"
    assert outbox("resubmit", "orders", "--newer", "1h", "--limit", "1") == "resubmitted 1 of orders\n"
    assert outbox("list", "orders", "--older", "1h").startswith("orders has no dead letters")
