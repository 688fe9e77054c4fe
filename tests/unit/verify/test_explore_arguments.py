"""What `explore` is asked for and cannot do is told before it begins, with what it can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from outbox import App, Context, UnknownDestination
from outbox.errors import UnknownType
from outbox.verify import explore
from outbox.verify.promises.view import View


@dataclass
class Order:
    id: str
    price: int = 1


@dataclass
class Till:
    sum: int = 0


app = App("shop")
app.queue("parcels")


@app.handler("orders", key="id")
def take(order: Order, till: Till) -> None:
    till.sum += order.price


O1 = ("orders", Order("o1"), "o1")

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no app": ({"app": take}, r"explore\(app, messages\): the first is an App, not a function"),
    "one message alone": ({"messages": O1}, r"each of messages is \(queue, message, id\)"),
    "a text": ({"messages": "orders"}, "messages is a str, give a list"),
    "no messages": ({"messages": []}, "0 messages: give 1 to 100"),
    "no id": ({"messages": [("orders", Order("o1"), "")]}, "queue and id as texts"),
    "two parts": ({"messages": [("orders", Order("o1"))]}, r"each of messages is \(queue, message, id\)"),
    "a queue that nobody reads": ({"messages": [("parcels", Order("o1"), "o1")]}, "send to one of orders"),
    "a message that nobody takes": ({"messages": [("orders", Till(), "o1")]}, "no handler of 'orders' takes a Till"),
    "a key of another kind": ({"given": [(1, Till(1))]}, "key 1 is an integer"),
    "an id twice": ({"messages": [O1, O1]}, "for a copy of one say duplicates=1"),
    "a bare state": ({"given": [Till(1)]}, r"each of given is \(key, state\)"),
    "an unknown state": ({"given": [("a", Order("o1"))]}, "the states of shop are of Till"),
    "a state twice": ({"given": [("a", Till(1)), ("a", Till(2))]}, "leave one out"),
    "no workers": ({"workers": 0}, "workers=0: 1 to 8 can be explored"),
    "half a worker": ({"workers": 1.5}, "workers=1.5: a number from 1 to 8"),
    "too many crashes": ({"crashes": 99}, "crashes=99: 0 to 15 can be explored"),
    "fewer than no duplicates": ({"duplicates": -1}, "duplicates=-1"),
    "an unknown scope": ({"scope": "cosmos"}, "'engine', 'partition', 'item' can be explored"),
    "stale reads of an engine": ({"stale": 1}, 'say scope="partition"'),
    "an invariant's value": ({"invariant": True}, "a function of the world"),
    "a value of the end": ({"at_end": True}, "at_end=True: a function of the world"),
    "an unknown leave": ({"allow": {"everything"}}, "a set of 'order', 'dead-letter'"),
    "a text as a leave": ({"allow": "order"}, "such as {'order'}"),
    "no time": ({"seconds": 0}, "seconds=0: how much CPU time may be spent"),
    "a drawn seed": ({"seed": 0.5}, "seed=0.5: a whole number"),
}


@dataclass
class Refund:
    id: str


@dataclass
class Unused:
    sum: int = 0


VACUOUS: dict[str, tuple[Callable[[View], object], str]] = {
    "all of a state": (lambda world: not world.states(Unused), "shop has no state Unused.* its states are Till"),
    "a state": (lambda world: world.state(Unused, "o1") is None, "shop has no state Unused"),
    "messages": (lambda world: not world.in_flight(Refund), "no handler of shop takes a Refund, and none was sent"),
}


@pytest.mark.parametrize("name", VACUOUS)
def test_an_invariant_over_what_cannot_be_there_is_refused(name: str) -> None:
    invariant, cure = VACUOUS[name]
    with pytest.raises(UnknownType, match=cure):
        explore(app, [O1], invariant=invariant)


def test_an_invariant_over_a_key_of_another_kind_does_not_hold() -> None:
    report = explore(app, [O1], invariant=lambda world: world.state(Till, 1) is None)
    assert "key 1 is an integer" in report.anomalies[0].text, report.text


def test_an_invariant_may_ask_for_what_is_sent_later_and_has_no_handler() -> None:
    sending, seen = App("sending"), list[list[Refund]]()
    sending.queue("refunds")

    @sending.handler("orders")
    def refund(order: Order, ctx: Context) -> None:
        ctx.send("refunds", Refund(order.id))

    def looks(world: View) -> bool:
        seen.append(world.in_flight(Refund))
        return True

    report = explore(sending, [O1], workers=1, invariant=looks)
    assert report.exhausted and not report.anomalies and [] in seen and [Refund("o1")] in seen, report.text


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_explored_is_reported_with_its_cure(name: str) -> None:
    changed, cure = WRONG[name]
    arguments: dict[str, Any] = {"app": app, "messages": [O1]} | changed
    with pytest.raises((ValueError, TypeError), match=cure):
        explore(arguments.pop("app"), arguments.pop("messages"), **arguments)


def test_a_queue_that_was_never_declared_is_refused_with_the_cure() -> None:
    with pytest.raises(UnknownDestination, match=r"app\.queue\('nowhere'\)"):
        explore(app, [("nowhere", Order("o1"), "o1")])


def test_a_limit_that_is_reached_is_reported_and_nothing_claimed() -> None:
    messages = [("orders", Order("o1"), f"o{n}") for n in range(6)]
    report = explore(app, messages, seconds=0.05, seed=7)
    assert not report.exhausted and not report.anomalies
    assert "not exhausted: " in report.text and "CPU seconds is reached" in report.text
    assert "seed 7" in report.parts[-1].scope, "what is left of the time goes into drawn runs"


def test_topics_keys_and_handlers_without_state_can_be_explored() -> None:
    posts = App("posts")
    posts.topic("news")
    posts.queue("sent")

    @posts.handler("news", subscription="audit")
    def audit(order: Order) -> None:
        """Nothing to do."""

    @posts.handler("news", subscription="bill", key="id")
    def bill(order: Order, till: Till) -> None:
        till.sum += order.price

    report = explore(posts, [("news", Order("o1"), "o1")], given=[("7", Till(1))])
    assert report.exhausted, report.text


def test_each_number_is_of_its_own_kind_of_fault() -> None:
    kinds = {"crashes": 1, "lost": 2, "delayed": 3, "refused": 4, "expired": 5, "stale": 6, "jumps": 7, "timeouts": 8}
    report = explore(app, [O1], scope="partition", rescheduled=2, seconds=0.01, **cast(Any, kinds))
    faults = "crash 1, lost 2, delay 3, error 4, expire 5, stale 6, jump 7, timeout 8"
    assert f"2 workers, 1 message, 1 duplicate, rescheduled 2 times, {faults}" in report.scope


def test_every_number_of_copies_and_workers_is_explored() -> None:
    report = explore(app, [O1], workers=2, duplicates=2, crashes=0)
    assert report.exhausted, report.text
    for workers in (1, 2):
        found = [part.scope for part in report.parts if f"{workers} worker(s)" in part.scope]
        assert {copies for scope in found for copies in (1, 2, 3) if f"{copies} with copies" in scope} == {1, 2, 3}


def test_what_must_hold_at_the_end_is_asked_for_at_the_end_alone() -> None:
    report = explore(app, [O1], workers=1, crashes=0, duplicates=0, at_end=lambda world: not world.states(Till))
    assert [found.promise for found in report.anomalies] == ["AtEnd"] and not report.anomalies[0].trace


def test_every_request_is_repeated_and_met_by_as_many_processes() -> None:
    web = App("web")

    @web.http("POST", "/orders", key="id")
    def place(order: Order, till: Till) -> None:
        till.sum += order.price

    report = explore(web, requests=[("POST", "/orders", Order("o1"), "k1")], crashes=0, workers=2)
    assert report.exhausted, report.text
    scopes = [part.scope for part in report.parts]
    for asked in (
        "1 front(s), 1 request(s), 2 with",
        "2 front(s), 1 request(s), 1 with",
        "2 front(s), 1 request(s), 2",
    ):
        assert any(asked in scope for scope in scopes), scopes
