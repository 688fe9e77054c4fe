"""Planted situations of a running host: what only it can be in, named by one command over its control endpoint.

The table of test_situations.py again, asked of a host that holds the folder: a handler that hangs, a breaker that is
open, a rate that holds messages back.  One host has all of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox import App, Engine, Reject, Retries, Worker
from outbox.guards import Breaker, Rate
from outbox.ops.admins.control import serve_control
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.cli.parser import main
from outbox.ops.shared.meter import Meter, Metered
from tests.unit.messages import Count, Order
from tests.unit.ops.situations import Situation

PAYMENTS = Breaker("payments", least=2, open_s=600)
TIMEOUT_S = 20


async def answer_of_the_warehouse(until: asyncio.Event) -> None:
    await until.wait()


HANGS_AT = answer_of_the_warehouse.__code__.co_firstlineno + 1


def shop(until: asyncio.Event, stop: threading.Event) -> App:
    app = App("shop", retry=Retries(limit=3, delays_s=(600.0,)), time_limit_s=600.0)
    app.queue("ledger", "per_key")

    @app.handler("orders", key="key")
    async def take(order: Order, count: Count) -> None:
        await answer_of_the_warehouse(until)

    @app.handler("reports", key="key", blocking=True)
    def write(order: Order, count: Count) -> None:
        stop.wait(TIMEOUT_S)

    @app.handler("charges", key="key", breaker=PAYMENTS)
    def charge(order: Order, count: Count) -> None:
        raise ConnectionError("the bank does not answer")

    @app.handler("letters", key="key", rate=Rate(0.01, name="the printer"))
    def post(order: Order, count: Count) -> None:
        count.n += 1

    @app.handler("ledger", key="key", on_dead_letter="stop_key")
    def enter(order: Order, count: Count) -> None:
        raise Reject("no such account")

    return app


SENT = (
    *(("orders", "hangs-1", "a"), ("orders", "behind-1", "a"), ("reports", "thread-1", "b")),
    *(("charges", f"charge-{n}", f"k{n}") for n in range(3)),
    *(("letters", f"letter-{n}", f"k{n}") for n in range(2)),
    *(("ledger", f"entry-{n}", "a") for n in range(2)),
)
SITUATIONS = (
    Situation("a handler that hangs", None, "queue peek orders --state in-hand").says(
        "hangs-1", "handler take has waited for", "test_host_situations.py"
    ),
    Situation("the line at which it hangs", None, "message show hangs-1").says(
        f"test_host_situations.py:{HANGS_AT} in answer_of_the_warehouse", "the lock ends in"
    ),
    Situation("a message behind one that hangs", None, "queue peek orders").says(
        "behind-1", "a receiver has it", "hangs-1", "handler take has waited for"
    ),
    Situation("a blocking handler that hangs", None, "queue peek reports").says(
        "thread-1", "handler write has waited for", "in a thread"
    ),
    Situation("a breaker that is open", None, "status").says(
        "breaker payments: open",
        "s more",
        "2 of 2 attempts failed, the last with ConnectionError",
        "rescheduled messages",
    ),
    Situation("a message that a breaker holds back", None, "queue peek charges").says(
        "charge-2", "next try in", "the breaker payments is open"
    ),
    Situation("a rate that holds messages back", None, "status").says("rate the printer: open", "wait for their place"),
    Situation("a message that a rate holds back", None, "queue peek letters").says("next try in", "the printer"),
    Situation("what became of a queue's messages", None, "status").says(
        "charges: 0 applied", "2 failed attempts", "rescheduled", "ledger: 0 applied", "refused (rejected 1)"
    ),
    Situation("a breaker, in numbers", None, "metrics").says('outbox_guard_state{app="shop",guard="payments"} 3'),
    Situation("a blocked key", None, "status").says("ledger: 1 key is blocked behind a dead letter", "resubmitted or"),
    Situation("a blocked key, in a look at everything", None, "doctor").says(
        "1 key of it is blocked by a dead letter",
        "`outbox blocked list ledger`",
        "blocked unblock --by resubmit ledger",
    ),
    Situation("a breaker, in a look at everything", None, "doctor").says(
        "payments", "the breaker is open, 10 min more: 2 of 2 attempts failed", "mend what its handlers call"
    ),
    Situation("a paused queue", "queue pause letters", "queue peek letters").says(
        "letters is paused", "outbox queue resume"
    ),
    Situation("a body that no handler takes", None, """send orders {"key":5}""").says(
        "does not fit Order", "$.key", "nothing was sent"
    ),
    Situation("a queue that is not there", None, """send ordres {"key":"a"}""").says(
        "'ordres' does not exist", "orders"
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a host that is in all of these situations, in a thread of its own."""
    path = tmp_path_factory.mktemp("host")
    ready, done, stop = threading.Event(), threading.Event(), threading.Event()
    failed: list[BaseException] = []

    async def host() -> None:
        until = asyncio.Event()
        app, meter = shop(until, stop), Meter()
        async with Engine.open(path) as engine:
            admin = EngineAdmin(engine, meter, app)
            async with (
                Worker(app, Metered(engine, meter), counts=meter.counts) as worker,
                serve_control(admin, path),
            ):
                for queue, id, key in SENT:
                    await worker.send(queue, Order(key), id=id)
                async with asyncio.timeout(TIMEOUT_S):
                    while not is_planted(engine, meter):  # noqa: ASYNC110  # no event says so
                        await asyncio.sleep(0.01)
                ready.set()
                await asyncio.to_thread(done.wait)
                until.set()

    def run() -> None:
        try:
            asyncio.run(host())
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(TIMEOUT_S) and not failed, failed
    yield path
    stop.set()
    done.set()
    thread.join(TIMEOUT_S)
    assert not failed, failed


def is_planted(engine: Engine, meter: Meter) -> bool:
    """Whether the host has got to all of it."""
    guards = {view.name: view for view in meter.guards(engine.now_ms())}
    hanging = sum(task.locked_until_ms > 0 for path in ("orders", "reports") for task in engine.broker.peek(path, 0, 9))
    rescheduled = sum(view.rescheduled for view in guards.values())
    return hanging == 3 and rescheduled >= 2 and len(engine.broker.peek("ledger/$DeadLetterQueue", 0, 9)) == 1


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_one_command_names_the_cause_and_the_cure(
    situation: Situation[str | None], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if situation.plant is not None:
        main([*situation.plant.split(), "--data", str(folder)])
    capsys.readouterr()
    main([*situation.command.split(), "--data", str(folder)])
    said = "".join(capsys.readouterr()).replace(f"--data {folder} ", "")  # of the cures
    assert all(word in said for word in situation.words), said
