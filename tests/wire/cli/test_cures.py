"""The cures that commands print for what cannot be edited, followed step by step: each leads to where it says.

A dead letter without a record (one that no handler could read), and one of a subscription, whose edit would reach the
other subscriptions, over Cosmos DB and Service Bus.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox import App, Client, Reject
from outbox.errors import Refused
from outbox.message import Message
from tests.unit.messages import Count, Order
from tests.wire.cli.planted import Run, Site, count

AUDIT = "news/Subscriptions/audit"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as site:
        site.handle(shop())
        yield site


def shop(*, is_mended: bool = False) -> App:
    app = App("shop")
    app.queue("ledger", "per_key")
    app.topic("news")

    @app.handler("orders", key="key")
    def take(order: Order, count: Count) -> None:
        count.n += 1

    @app.handler("ledger", key="key", on_dead_letter="stop_key")
    def enter(order: Order, count: Count) -> None:
        count.n += 1

    @app.handler("news", subscription="audit", key=lambda order: f"audit {order.key}", key_name="audit")
    def audit(order: Order, count: Count) -> None:
        if order.how == "odd" and not is_mended:
            raise Reject("not in the books")
        count.n += 1

    @app.handler("news", subscription="archive", key=lambda order: f"archive {order.key}", key_name="archive")
    def archive(order: Order, count: Count) -> None:
        count.n += 1

    return app


def steps(text: str) -> list[list[str]]:
    """The commands that a cure consists of, as words."""
    cure = text[: text.index("\n{")] if "\n{" in text else text
    return [command.split() for command in re.findall("`(outbox [^`]*)`", cure)]


def broken(site: Site, queue: str, id: str, session_id: str = "") -> None:
    message = Message(body=b'{"key": 5}', type="Order", outbox_id=id, session_id=session_id)
    site.thread.run(lambda: site.engine.broker.send(queue, [message]))
    site.handle(shop())


def test_what_cannot_be_decoded_is_discarded_and_sent_anew(site: Site, run: Run, tmp_path: Path) -> None:
    broken(site, "orders", "bad-1")
    body = tmp_path / "body"
    body.write_text('{"key": "mended"}')
    code, said = run("dead-letters", "resubmit", "orders", "bad-1", "--body", str(body))
    assert code == 1 and "without a record that an edit could replace; discard it" in said
    discard, send, _ = steps(run("message", "show", "bad-1", "--queue", "orders")[1])
    assert run(*discard[1:]) == (0, "discarded 1 of orders\n")
    assert send == ["outbox", "send", "orders", "BODY", "--type", "TYPE", "--id", "NEW-ID"]
    code, said = run("send", "orders", body.read_text(), "--id", "bad-1-mended")
    assert code == 0 and said.startswith("sent bad-1-mended to orders\noutbox: no application has checked this; ")
    site.handle(shop())
    assert count(run, "mended") == 1
    assert run("dead-letters", "list", "orders")[1] == "orders has no dead letters\n"


def test_in_an_ordered_queue_the_new_one_wants_its_key(site: Site, run: Run) -> None:
    broken(site, "ledger", "bad-2", "book")
    discard, send, _ = steps(run("message", "show", "bad-2", "--queue", "ledger")[1])
    assert run(*discard[1:])[0] == 0 and send[:3] == ["outbox", "send", "ledger"]
    code, said = run("send", "ledger", '{"key": "book"}', "--id", "new-2")
    assert code == 1 and "ledger is ordered by key and message new-2 has none; give --key" in said
    assert run("send", "ledger", '{"key": "book"}', "--id", "new-2", "--key", "book")[0] == 0
    site.handle(shop())
    assert count(run, "book") == 1 and run("blocked", "list", "ledger")[1] == "no key is blocked\n"


def test_a_subscription_whose_handler_is_mended_takes_it_as_it_is(site: Site, run: Run) -> None:
    assert run("send", "news", '{"key": "one", "how": "odd"}', "--id", "news-1")[0] == 0
    site.handle(shop())
    assert run("dead-letters", "resubmit", AUDIT, "news-1")[0] == 0
    site.handle(shop(is_mended=True))
    assert (count(run, "audit one"), count(run, "archive one")) == (1, 1)
    assert run("dead-letters", "list", AUDIT)[1] == f"{AUDIT} has no dead letters\n"


@pytest.mark.parametrize("path", [AUDIT, "news/subscriptions/audit"])
def test_a_subscription_gets_a_corrected_message_as_all_others_do(
    site: Site, run: Run, path: str, tmp_path: Path
) -> None:
    key, id = f"two-{len(path)}-{path[5]}", f"news-2-{path[5]}"
    body = tmp_path / "body"
    body.write_text(json.dumps({"key": key}))
    assert run("send", "news", json.dumps({"key": key, "how": "odd"}), "--id", id)[0] == 0
    site.handle(shop())
    code, said = run("dead-letters", "resubmit", path, id, "--body", str(body))
    assert (
        code == 1 and "send the corrected message to news under a new id, which the other subscriptions handle" in said
    )
    assert run("dead-letters", "discard", path, id)[0] == 0
    code, said = run("send", path, body.read_text())
    assert code == 1 and "is a subscription, which cannot be sent to; send to news" in said
    assert run("send", "news", body.read_text(), "--id", f"{id}-corrected")[0] == 0
    site.handle(shop())
    assert (count(run, f"audit {key}"), count(run, f"archive {key}")) == (1, 2)


def test_a_message_to_nowhere_is_refused(run: Run) -> None:
    code, said = run("send", "no-such", "{}", "--id", "x")
    assert code == 1 and "no-such" in said and "does not exist; there are: " in said


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_topic_is_not_taken_for_a_queue(site: Site, run: Run, verb: str) -> None:
    code, said = run("queue", verb, "news")
    assert code == 1 and "news is a topic, not a queue; name a subscription: news/Subscriptions/NAME" in said


def test_a_queue_of_an_application_that_is_a_topic_here_is_refused_at_the_start(site: Site) -> None:
    app = App("other")

    @app.handler("news", key="key")
    def take(order: Order, count: Count) -> None:
        count.n += 1

    async def declare() -> None:
        await Client(app, await site.backend("outbox-partition", create=False)).declare()

    with pytest.raises(Refused, match="news is a topic, not a queue"):
        site.thread.run(declare)
