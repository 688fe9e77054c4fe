"""Dead letters of one queue on the bus and in the store, of one id or without any, by the command line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from outbox import App, Reject
from outbox.azure.servicebus import dead_letters
from outbox.engine.entities import QueueSettings, Settlement
from outbox.engine.state.tasks import ACTIVE
from outbox.message import Message
from outbox.ports import DeadLetterEntry
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters
from tests.unit.messages import Count, Order
from tests.wire.cli.planted import Run, Site


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as site:
        site.prepare()
        yield site


def on_the_bus(site: Site, queue: str, *messages: Message, reason: str = "no") -> None:
    """Have a receiver dead-letter these messages."""

    def plant() -> None:
        site.engine.declare(QueueSettings(queue))
        broker = site.engine.broker
        for message in messages:
            broker.send(queue, [message])
            [claim] = broker.claim(queue, 1)
            broker.settle(claim.token, Settlement.DEAD_LETTER, reason=reason)

    site.thread.run(plant)


def in_the_store(site: Site, queue: str, *messages: Message, reason: str = "no") -> None:
    """Have a Functions host store these messages, as they are refused."""

    async def plant() -> None:
        ports = (await site.backend("outbox-partition")).ports()
        letters = StoredDeadLetters(ports.store, ports.blobs)
        for number, message in enumerate(messages, 7_000):
            await letters.put(DeadLetterEntry(queue, number, message, reason, "", 1, 1_700_000_000_000 + number))

    site.thread.run(plant)


def made(id: str, body: bytes = b'{"key": "a"}', attempt: int = 0) -> Message:
    return Message(body=body, type="Order", outbox_id=id, attempt=attempt)


def waiting(site: Site, queue: str) -> list[tuple[str, int]]:
    """The ids and attempts of what a queue holds."""
    tasks = site.thread.run(lambda: site.engine.broker.peek(queue, 0, 1_000))
    return [(task.message.identity, task.message.attempt) for task in tasks]


@pytest.mark.parametrize(("on_bus", "stored"), [(0, 5), (5, 0)])
@pytest.mark.parametrize("newest", ["bus", "store"])
def test_a_resubmission_is_above_every_copy_wherever_it_lies(
    site: Site, run: Run, on_bus: int, stored: int, newest: str
) -> None:
    queue = f"orders-{on_bus}-{newest}"
    on_the_bus(site, queue, made("x1", attempt=on_bus), made("x1", b'{"key": "another"}'))
    in_the_store(site, queue, made("x1", attempt=stored))
    letters = site.thread.run(lambda: site.engine.broker.peek(f"{queue}/$DeadLetterQueue", 0, 9))
    words = ["--sequence", str(letters[0].sequence)] if newest == "bus" else ["--sequence", number_in_store(run, queue)]
    assert run("dead-letters", "resubmit", queue, "x1", *words)[0] == 0
    assert waiting(site, queue) == [("x1", 6)]
    assert run("dead-letters", "list", queue)[1].count("x1") == 1  # that of another body


def number_in_store(run: Run, queue: str) -> str:
    """The number of the only stored dead letter: it is made of a time."""
    lines = [line.split() for line in run("dead-letters", "list", queue)[1].splitlines()]
    return next(number for line in lines for number in line if number.isdigit() and len(number) > 12)


def test_a_message_without_an_id_is_named_by_its_number(site: Site, run: Run) -> None:
    bare = Message(body=b'{"key": "a"}', type="Order")
    on_the_bus(site, "bare", *[bare] * 4)
    on_the_bus(site, "bare", bare, reason="no-identity")
    in_the_store(site, "bare", bare)
    site.thread.run(lambda: site.engine.broker.send("bare", [bare]))
    [waits] = [task.sequence for task in site.thread.run(lambda: site.engine.broker.peek("bare", 0, 9))]
    listed = [each["id"] for each in json.loads(run("dead-letters", "list", "bare", "--json")[1])]
    dead = [id for id in listed if id != "sequence-7000"]
    assert len(dead) == 5 and all(id.startswith("sequence-") for id in dead)
    code, said = run("message", "show", f"sequence-{waits}", "--queue", "bare")
    assert code == 0 and f"sequence-{waits} in bare: waiting" in said
    for id in dead:
        code, said = run("message", "show", id, "--queue", "bare")
        assert code == 0 and f"{id} in the dead letters of bare" in said
        code, said = run("dead-letters", "show", "bare", id)
        assert code == 0 and (f"discard bare {id}" in said or f"resubmit bare {id}" in said)
    assert run("dead-letters", "discard", "bare", dead[0]) == (0, "discarded 1 of bare\n")
    assert run("dead-letters", "restore", "bare", dead[0]) == (0, "restored 1 of bare\n")
    assert run("dead-letters", "discard", "bare", dead[4], "--for-good") == (0, "discarded 1 of bare\n")
    assert run("dead-letters", "resubmit", "bare", dead[1]) == (0, "resubmitted 1 of bare\n")
    assert (dead[1], 1) in waiting(site, "bare")
    assert run("dead-letters", "resubmit", "bare", "sequence-7000") == (0, "resubmitted 1 of bare\n")  # of the store
    assert ("sequence-7000", 1) in waiting(site, "bare")


MANY, CHOSEN = 300, 10


def test_those_that_a_filter_means_are_discarded_in_one_pass(site: Site, run: Run) -> None:
    odd = [n for n in range(MANY) if n % (MANY // CHOSEN) == 7]
    on_the_bus(site, "many", *[made(f"m-{n}", b'{"how": "odd"}' if n in odd else b"{}") for n in range(MANY)])
    in_the_store(site, "many", made("stored", b'{"how": "odd"}'))
    site.bus_faults.asked.clear()
    assert run("dead-letters", "discard", "many", "--text", "odd") == (0, f"discarded {CHOSEN + 1} of many\n")
    asked = Counter(site.bus_faults.asked)
    assert asked["attach"] <= 4, asked  # one for each of: names and lists, and the pass
    left = site.thread.run(lambda: site.engine.broker.peek("many/$DeadLetterQueue", 0, 1_000))
    assert len(left) == MANY - CHOSEN and all(task.status == ACTIVE for task in left)  # given back
    assert not any(task.delivery_count for task in left), "they are given back uncounted"
    kept = json.loads(run("dead-letters", "list", "many", "--discarded", "--json")[1])
    assert sorted(each["id"] for each in kept) == sorted([*(f"m-{n}" for n in odd), "stored"])


def test_a_pass_unblocks_the_keys_of_what_it_discards(site: Site, run: Run) -> None:
    app = App("shop")
    app.queue("ledger", "per_key")

    @app.handler("ledger", key="key", on_dead_letter="stop_key")
    def enter(order: Order, count: Count) -> None:
        if order.how == "refuse":
            raise Reject("no such account")
        count.n += 1

    site.handle(app)
    for key in ("a", "b"):
        body = json.dumps({"key": key, "how": "refuse"})
        assert run("send", "ledger", body, "--id", f"refused-{key}", "--key", key)[0] == 0
        assert run("send", "ledger", json.dumps({"key": key}), "--id", f"next-{key}", "--key", key)[0] == 0
    site.handle(app, stays=["next-a", "next-b"])
    assert "refused-a" in run("blocked", "list", "ledger")[1]
    assert run("dead-letters", "discard", "ledger", "--reason", "no such account") == (0, "discarded 2 of ledger\n")
    assert run("blocked", "list", "ledger")[1] == "no key is blocked\n" and len(waiting(site, "ledger")) == 2


def test_all_are_discarded_in_one_pass(site: Site, run: Run) -> None:
    on_the_bus(site, "every", *[made(f"e-{n}") for n in range(40)])
    site.bus_faults.asked.clear()
    assert run("dead-letters", "discard", "every", "--all", "--for-good") == (0, "discarded 40 of every\n")
    assert Counter(site.bus_faults.asked)["attach"] <= 4
    assert run("dead-letters", "list", "every")[1] == "every has no dead letters\n"


def test_a_pass_looks_as_far_as_its_limit_beyond_what_it_discards(
    site: Site, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LOOK_COUNT_MAX", 20)
    monkeypatch.setattr(dead_letters, "PAGE_COUNT", 10)
    on_the_bus(site, "deep", *[made(f"d-{n}", b"{}" if n < 10 or n > 40 else b'{"how": "odd"}') for n in range(65)])
    on_the_bus(site, "deep", made("d-last", b'{"how": "odd"}'))
    code, said = run("dead-letters", "discard", "deep", "--text", "odd", "--for-good")
    assert code == 0 and "discarded 31 of deep" in said, said
    letters = site.thread.run(lambda: site.engine.broker.peek("deep/$DeadLetterQueue", 0, 99))
    assert len(letters) == 35 and all(task.status == ACTIVE for task in letters)
    code, said = run("dead-letters", "resubmit", "deep", "d-64")
    assert code == 1 and "is free; only the first 20 were looked at" in said, said


def test_what_another_has_in_hand_is_left_by_a_pass(site: Site, run: Run) -> None:
    on_the_bus(site, "shared", *[made(f"s-{n}") for n in range(3)])
    site.thread.run(lambda: site.engine.broker.claim("shared/$DeadLetterQueue", 1))
    code, said = run("dead-letters", "discard", "shared", "--reason", "no")
    assert code == 0 and "discarded 2 of shared; 1 left, the first because shared has no dead letter 's-0'" in said
    kept = json.loads(run("dead-letters", "list", "shared", "--discarded", "--json")[1])
    assert sorted(each["id"] for each in kept) == ["s-1", "s-2"]
