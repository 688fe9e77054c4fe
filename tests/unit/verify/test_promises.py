"""Each promise by itself, without an exploration: what breaks it is found as that promise, and what keeps it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from outbox import App, Context, Reject
from outbox.engine.engine import Engine
from outbox.engine_commit import WAITING, WAITING_ATTEMPT
from outbox.http import Reply
from outbox.lineage import fingerprint
from outbox.message import Message
from outbox.ports import (
    Commit,
    Create,
    DeadLettering,
    Delivery,
    Output,
    Refusal,
    Replace,
    Settle,
    StateChange,
    Won,
    Write,
)
from outbox.resubmission import Replaced
from outbox.runtime.commit.marker_replies import with_reply
from outbox.runtime.start.plan import compile_app
from outbox.stored import Inline, Record, Staged, StateItem, encode, processed_key, record_key, staged_key, state_key
from outbox.streams.cells import Position
from outbox.streams.pipeline.checkpoint import Checkpoint, PipelineRegister
from outbox.verify.explorer.models.store import Doc, Partition
from outbox.verify.explorer.ops import Finding, Op
from outbox.verify.explorer.ops import Outcome as CallOutcome
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.promises.journal import Gated, GateMonitor, JournalMonitor
from outbox.verify.promises.ledger import (
    Answered,
    Applied,
    Book,
    Differs,
    Ledger,
    Marked,
    Pushed,
    ReadAnswered,
    Resubmitted,
    SettledHandlings,
)
from outbox.verify.promises.pipelines import PipelineGhost, PipelineMonitor
from outbox.verify.promises.reference import Reference, SideEffect
from outbox.verify.promises.store import StoreMonitor, Swap
from outbox.verify.promises.view import Ends
from tests.unit.streams.pipeline.counting import Counting

NOW_MS, RETENTION_MS = 10_000_000, 1_000


@dataclass
class Order:
    id: str
    price: int = 1


@dataclass
class Till:
    sum: int = 0


app = App("shop")
app.queue("orders", "per_key")
app.queue("parcels")


@app.handler("orders", key=lambda order: "ann", on_dead_letter="stop_key")
def take(order: Order, till: Till, ctx: Context) -> None:
    if order.price > 10:
        raise Reject("dear")
    till.sum += order.price
    ctx.send("parcels", order)


def message(id: str, price: int = 1, created_ms: int = NOW_MS, **fields: Any) -> Message:
    body, wire_type = app.encode(Order(id, price))
    return Message(body=body, outbox_id=id, type=wire_type, created_ms=created_ms, session_id="ann", **fields)


def book() -> Book:
    sent = [Output("orders", 0, message(id)) for id in ("a", "b")] + [Output("orders", 0, message("dear", 11))]
    routes = {"orders": ["orders"], "parcels": ["parcels"]}
    edits = [Output("orders", 0, message("a", 2))]
    return Book(Reference(compile_app(app)), routes, sent, edits=edits, retention_ms_min=RETENTION_MS)


BOOK = book()
(HANDLING_A,), (HANDLING_B,), (DEAR,) = (
    BOOK.handlings("orders", each) for each in (message("a"), message("b"), message("dear", 11))
)
A, B = HANDLING_A.inbox, HANDLING_B.inbox
X, Y = b"x" * 32, b"y" * 32
OUT = ("parcels", X.hex() + "-0", b"digest")
OTHER = (*OUT[:2], b"another")
EDITED = fingerprint(message("a", 2).body, message("a").type)

Step = Callable[[Ledger], Any]


def does(*applied: bytes, **fields: Any) -> Step:
    return lambda ledger: BOOK.apply(ledger, Applied(applied, **fields))


def resubmits(inbox: bytes, attempt: int, payload: bytes = b"1", over: bytes = b"1") -> Step:
    return lambda ledger: BOOK.resubmit(ledger, Resubmitted(((inbox, attempt, payload, over),)))


def refuses(*refused: bytes, **fields: Any) -> Step:
    return does(refused=refused, payloads=tuple((inbox, b"1") for inbox in refused), **fields)


def marks(inbox: bytes) -> Step:
    return lambda ledger: BOOK.mark(ledger, Marked((inbox,)))


def pushes(emission: Any) -> Step:
    return lambda ledger: BOOK.push(ledger, Pushed((emission,)))


def settles(inbox: bytes, *, dead: bool) -> Step:
    return lambda ledger: BOOK.settle(ledger, SettledHandlings((inbox,), dead))


def calls(what: str, key: str = X.hex() + "-1") -> Step:
    return lambda ledger: BOOK.note(ledger, SideEffect(what, key))


def answers(status: int, reply: str, inbox: bytes = X, payload: bytes = b"1") -> Step:
    return lambda ledger: BOOK.answer(ledger, Answered(inbox, payload, status, reply))


EDIT = (refuses(X), resubmits(X, 1, b"2"), does(X, again=((X, 1),), payloads=((X, b"2"),)))
LEDGER: dict[str, tuple[str, tuple[Step, ...]]] = {
    "applied twice": ("NoDuplicate", (does(X), does(X))),
    "applied twice at once": ("NoDuplicate", (does(X, X),)),
    "applied, cancelled before": ("", (does(X), does(X, cancelled=(X,)))),
    "refused, and applied": ("NoDuplicate", (refuses(X), does(X))),
    "resubmitted, and applied": ("", (refuses(X), resubmits(X, 1), does(X, again=((X, 1),)))),
    "applied as an attempt that nobody made": ("NoDuplicate", (refuses(X), resubmits(X, 1), does(X, again=((X, 2),)))),
    "applied as an attempt that was refused again": (
        "NoDuplicate",
        (refuses(X), resubmits(X, 1), refuses(X, again=((X, 1),)), does(X, again=((X, 1),))),
    ),
    "applied, and refused": ("NoDuplicate", (does(X), refuses(X))),
    "applied, and refused for its age": ("", (does(X), does(fenced=(X,), settled=(X,)))),
    "an output twice": ("NoDuplicate", (does(X, emitted=(OUT,)), does(Y, emitted=(OUT,)))),
    "an output of two payloads": ("ConsistentOutput", (does(X, emitted=(OUT,)), does(Y, emitted=(OTHER,)))),
    "an edit": ("", EDIT),
    "an edit in place of another refusal": ("NoDuplicate", (refuses(X), resubmits(X, 1, b"3"), *EDIT[2:])),
    "an edit in place of nothing": ("NoDuplicate", (does(A, payloads=((A, EDITED),)),)),
    "an edit of nothing that was applied": ("NoDeadLetter", (does(X), does(unfounded=(X,)))),
    "an edit of nothing that was refused": ("NoDeadLetter", (refuses(X), does(unfounded=(X,)))),
    "a copy of what was edited": ("NoDeadLetter", (*EDIT, does(differing=((X, b"1"),)))),
    "a copy of the edit": ("", (*EDIT, lambda ledger: BOOK.differ(ledger, Differs(((X, b"2"),))))),
    "out of turn": ("InOrder", (does(B),)),
    "in turn": ("", (does(A), does(B))),
    "behind a refusal": ("InOrder", (refuses(A), does(B))),
    "behind what was applied after all": ("", (refuses(A), resubmits(A, 1), does(A, again=((A, 1),)), does(B))),
    "quarantined": ("", (does(fenced=(X,), settled=(X,)),)),
    "settled and not committed": ("NothingLeavesEarly", (does(Y, settled=(X,)),)),
    "sent and not committed": ("NoGhost", (pushes(OUT),)),
    "sent otherwise": ("ConsistentOutput", (does(X, emitted=(OUT,)), pushes(OTHER))),
    "marked and not committed": ("NothingLeavesEarly", (marks(X),)),
    "marked and not sent": ("NoLost", (does(X, emitted=(OUT,)), marks(X))),
    "marked": ("", (does(X, emitted=(OUT,)), pushes(OUT), marks(X))),
    "dead-lettered and not committed": ("NothingLeavesEarly", (settles(X, dead=True),)),
    "dead-lettered after all": ("NoDuplicate", (does(X), settles(X, dead=True))),
    "dead-lettered as a copy of an edit": ("", (*EDIT, settles(X, dead=True))),
    "completed": ("", (does(X), settles(X, dead=False))),
    "a file": ("StaysInside", (calls("leaves", "open 'x'"),)),
    "a call twice": ("OneCall", (calls("call"), calls("call"))),
    "two calls": ("", (calls("call"), calls("call", X.hex() + "-2"))),
    "an answer before the commit": ("NothingLeavesEarly", (answers(200, "r"),)),
    "another answer": ("OneAnswer", (does(X, replies=((X, b"1", "r"),)), answers(200, "s"))),
    "another request under its key": ("", (answers(422, "s", A, b"2"),)),
    "no other request under its key": ("NothingLeavesEarly", (answers(422, "s", B, b"2"),)),
    "a refusal of its own key": ("OneAnswer", (does(A, replies=((A, b"1", "r"),)), answers(422, "s", A))),
    "the answer": ("", (does(X, replies=((X, b"1", "r"),)), answers(200, "r"))),
    "a read": ("NothingLeavesEarly", (lambda ledger: BOOK.answer_read(ledger, ReadAnswered("r", "r")),)),
}


@pytest.mark.parametrize("what", LEDGER)
def test_what_happens_is_held_against_what_has_happened(what: str) -> None:
    promise, steps = LEDGER[what]
    found: Any = Ledger()
    for step in steps:
        assert isinstance(found, Ledger), found
        found = step(found)
    assert (found.promise if isinstance(found, Finding) else "") == promise, found


def test_a_refusal_for_age_is_held_against_the_age() -> None:
    for created_ms, promise in ((NOW_MS - RETENTION_MS + 1, "NoDeadLetter"), (NOW_MS - RETENTION_MS, "")):
        (handling,) = BOOK.handlings("orders", message("a", created_ms=created_ms))
        found = BOOK.not_old(handling, Refusal(b"1", "too-old", ""), NOW_MS)
        assert (found.promise if found else "") == promise
        assert BOOK.is_unfounded(handling, Refusal(b"1", "edit-without-record", ""), NOW_MS) == bool(promise)


def test_a_resubmission_that_was_not_tried_is_found() -> None:
    refused = Ledger(refused=frozenset((A,)), payloads=frozenset(((A, b"1"),)), edits=frozenset(((A, 1, b"1", b"1"),)))
    found = BOOK.unasked(refused, [HANDLING_A])
    assert found is not None and found.promise == "EveryMessageEnds"
    assert BOOK.unasked(replace(refused, refused_again=frozenset(((A, 1),))), [HANDLING_A]) is None


# A commit of an engine


def output(identity: str = f"{A.hex()}-0", price: int = 1) -> Output:
    (made,) = BOOK.reference.run(HANDLING_A, None, NOW_MS).outputs  # type: ignore[union-attr]  # it is applied
    return Output("parcels", 0, replace(made.message, outbox_id=identity, body=message("a", price).body))


def delivery(sent: Message) -> Delivery:
    return Delivery("orders", 1, sent, 1, NOW_MS, NOW_MS)


def payload(sent: Message) -> bytes:
    return fingerprint(sent.body, sent.type)


def commit(**changed: Any) -> Commit:
    marker, state = {A: payload(message("a"))}, {HANDLING_A.state_id: StateChange(b'{"sum":1}', 1, 1)}
    fields: dict[str, Any] = {"consumed": [delivery(message("a"))], "if_versions": {HANDLING_A.state_id: 0}}
    fields |= {"states": state, "outputs": [output()], "applied": marker, "handled": [A], "refused": {}}
    fields |= {"replacing": {}, "dead_lettered": [], "postponed": []}
    return Commit(now_ms=NOW_MS, markers_expire_ms=NOW_MS + 1, **{**fields, **changed})


def refusing(sent: Message, inbox: bytes, reason: str) -> Commit:
    return commit(
        consumed=[], states={}, outputs=[], applied={}, handled=[],
        dead_lettered=[DeadLettering(delivery(sent), reason, "", 1)],
        refused={inbox: Refusal(payload(sent), reason, "")},
    )  # fmt: skip


WAITS = {A: Refusal(payload(message("a")), WAITING, "", WAITING_ATTEMPT)}
COMMITS: dict[str, tuple[str, Commit]] = {
    "right": ("", commit()),
    "without its message": ("NoGhost", commit(consumed=[])),
    "another state": ("Serializable", commit(states={HANDLING_A.state_id: StateChange(b'{"sum":2}', 1, 1)})),
    "over an unseen state": ("OneChangePerETag", commit(states={}, if_versions={HANDLING_A.state_id: 7})),
    "without its output": ("NoLost", commit(outputs=[])),
    "its output twice": ("NoDuplicate", commit(outputs=[output(), output()])),
    "a foreign output": ("NoGhost", commit(outputs=[output(), output("another")])),
    "another payload": ("ConsistentOutput", commit(outputs=[output(price=7)])),
    "what its handler refuses": (
        "Serializable",
        commit(
            consumed=[delivery(message("dear", 11))],
            **{"handled": [DEAR.inbox], "applied": {DEAR.inbox: b"1" * 32}, "states": {}, "outputs": []},
        ),
    ),
    "without its reply": ("OneAnswer", commit(applied={A: with_reply(b"1" * 32, Reply(200, {}, b"done"))})),
    "refused rightly": ("", refusing(message("dear", 11), DEAR.inbox, "dear")),
    "refused without a reason": ("Serializable", refusing(message("a"), A, "dear")),
    "refused as undecodable": ("", refusing(message("a"), A, "undecodable")),
    "refused as too old": ("NoDeadLetter", refusing(message("a"), A, "too-old")),
    "waiting over a record": ("NoDuplicate", commit(refused=WAITS)),
}


@pytest.mark.parametrize("what", COMMITS)
def test_a_commit_is_what_its_handlers_do(what: str) -> None:
    promise, made = COMMITS[what]
    markers = ((A, b"1", NOW_MS + 1),) if made.refused == WAITS else ((A, b"1", NOW_MS),)
    before = SimpleNamespace(markers=markers, documents=())
    known = book()
    known.requests.update((A,) if promise == "OneAnswer" else ())
    monitor = JournalMonitor(Ends(known, SimpleNamespace()))  # type: ignore[arg-type]  # no world is looked at
    found = monitor.observe(Op(0, "commit", (made,), b""), before, CallOutcome("", None, None), NOW_MS)
    assert (found.promise if isinstance(found, Finding) else "") == promise, found


def test_a_call_outside_waits_for_the_sync_of_what_it_rests_on() -> None:
    gate, call = GateMonitor(JournalMonitor(Ends(BOOK, SimpleNamespace()))), SideEffect("call", X.hex() + "-1")  # type: ignore[arg-type]  # no world is looked at
    early = gate.step(Gated(Ledger(applied=frozenset((X,))), Ledger()), call)
    assert isinstance(early, Finding) and early.promise == "NothingLeavesEarly"
    assert isinstance(gate.step(Gated(Ledger(), Ledger()), call), Gated)


# Writes of a store

TX = "t1"
RECORD = Record(TX, payload(message("a")), NOW_MS, pending=True, outputs=(output(),))
STATE = StateItem(msgspec.Raw(b'{"sum":1}'), 1, 1, NOW_MS)
ID = HANDLING_A.state_id or ""


def records(record: Record, state: StateItem | None = STATE, inbox: bytes = A) -> list[Create]:
    written = [Create(record_key(ID, inbox), encode(record))]
    return written if state is None else [*written, Create(state_key(ID), encode(state))]


PLAIN = Record(TX, RECORD.fingerprint, NOW_MS)
REFUSED = replace(PLAIN, reason="dear")
NOTHING = StateItem(msgspec.Raw(b"null"), 1, 1, NOW_MS)
KEPT = replace(PLAIN, reason=WAITING, attempt=WAITING_ATTEMPT)
WRITES: dict[str, tuple[str, list[Create]]] = {
    "right": ("", records(RECORD)),
    "of an unknown message": ("NoGhost", records(RECORD, inbox=X)),
    "apart from its state": ("Serializable", records(RECORD, None)),
    "cancelled by nobody": ("NoLost", records(replace(PLAIN, replaced=(Replaced(b"", 0, NOW_MS),)), NOTHING)),
    "refused without a reason": ("Serializable", records(REFUSED, NOTHING)),
    "refused as too old": ("NoDeadLetter", records(replace(PLAIN, reason="too-old"), NOTHING)),
    "what its handler refuses": ("Serializable", records(replace(PLAIN, fingerprint=b""), NOTHING, DEAR.inbox)),
    "with another reply": ("OneAnswer", records(replace(RECORD, reply=Reply(200, {}, b"done")))),
    "without its output": ("NoLost", records(PLAIN)),
    "a foreign output": ("NoGhost", records(replace(RECORD, outputs=(output(), output("another"))))),
    "another payload": ("ConsistentOutput", records(replace(RECORD, outputs=(output(price=7),)))),
    "an output that nobody will push": ("NoLost", records(replace(RECORD, pending=False))),
    "another state": ("Serializable", records(RECORD, replace(STATE, value=msgspec.Raw(b'{"sum":2}')))),
    "two versions at once": ("OneChangePerETag", records(RECORD, replace(STATE, version=2))),
    "a state alone": ("NoGhost", records(RECORD)[1:]),
    "waiting": ("", records(KEPT, None)),
    "waiting in item scope": ("", [Create(processed_key(ID, A), encode(KEPT))]),
}


def written(operations: Sequence[Write], *there: Create) -> Any:
    docs = tuple((each.key.id, Doc(each.body, 1)) for each in there)
    monitor = StoreMonitor(Ends(book(), SimpleNamespace()))  # type: ignore[arg-type]  # no world is looked at
    op = Op(0, "write", (operations,), b"")
    return monitor.observe(op, ((ID, Partition(docs)),), CallOutcome("", None, Won(("1",) * len(operations))), NOW_MS)


@pytest.mark.parametrize("what", WRITES)
def test_a_record_is_what_its_handler_does(what: str) -> None:
    promise, operations = WRITES[what]
    found = written(operations)
    assert (found.promise if isinstance(found, Finding) else "") == promise, found
    if promise == "" and what.startswith("waiting"):
        over = written(operations, Create(operations[0].key, encode(RECORD)))
        assert isinstance(over, Finding) and over.promise == "NoDuplicate"


def test_a_record_without_what_was_pending_says_that_it_has_left() -> None:
    assert written(records(PLAIN, None), records(RECORD)[0]) == Marked((A,))
    assert written([Create(processed_key(ID, A), encode(PLAIN))]) == Marked((A,))


def test_a_pointer_leads_to_what_is_staged_until_all_of_it_has_left() -> None:
    monitor = StoreMonitor(Ends(book(), SimpleNamespace()))  # type: ignore[arg-type]  # no world is looked at
    empty, pointing = encode(StateItem()), encode(replace(STATE, pending=TX))
    swap, clear = Swap(ID, empty, pointing, TX), Swap(ID, pointing, encode(STATE), "")
    staged = written([Create(staged_key(ID, TX), encode(Staged(TX, A, ID, 0, RECORD)))])

    def taken(*events: Any) -> Any:
        found: Any = Ledger()
        for event in events:
            found = monitor.step(found, event)
        return found.promise if isinstance(found, Finding) else ""

    assert taken(swap) == "StagedVanish" and taken(staged, swap) == ""
    assert taken(staged, swap, replace(staged, body=b"")) == "StagedVanish"
    assert taken(staged, swap, clear) == "NoLost"
    assert taken(staged, swap, replace(swap, before=pointing, tx="t2")) == "NoLost"
    inline = replace(STATE, pending=Inline(A, RECORD))
    assert taken(Swap(ID, empty, encode(inline), TX), Swap(ID, encode(inline), encode(STATE), "")) == "NoLost"


def test_what_leaves_and_how_a_message_ends_is_told_with_its_payload() -> None:
    there = SimpleNamespace(is_there=lambda *_, **__: False)
    monitor, taken = StoreMonitor(Ends(book(), there)), CallOutcome("", None, None, note=1)  # type: ignore[arg-type]  # a double
    copy = message("never sent", message_id="never sent~1")
    ghost = monitor.observe(Op(1, "send", ([Output("orders", 0, copy)],), b""), None, taken, NOW_MS)
    assert isinstance(ghost, Finding) and ghost.promise == "NoGhost"
    for settle, meaning in (
        (Settle("dead-letter", "payload-differs"), Differs(((A, payload(message("a"))),))),
        (Settle("dead-letter", "dear"), SettledHandlings((A,), True)),
        (Settle("complete"), SettledHandlings((A,), False)),
        (Settle("release"), None),
    ):
        assert monitor.observe(Op(1, "settle", (delivery(message("a")), settle), b""), None, taken, NOW_MS) == meaning
    dispatched = Replace(staged_key(ID, TX), encode(Staged(TX, A, ID, 0, RECORD, dispatched=True)), "1")
    assert written([dispatched]) == Marked((A,))


@pytest.mark.parametrize("what", ["NoLost", "StagedVanish of a record", "StagedVanish of a blob"])
def test_what_is_left_when_nothing_more_can_happen_is_found(what: str) -> None:
    kernel = Scenario(app, (), scope="partition", sweepers=1).kernel()
    store, bus, blobs = (model.initial() for model in kernel.models)
    monitor: Any = kernel.monitor
    assert monitor.final(Ledger(), (store, bus, blobs), NOW_MS) == []
    ghost = Ledger(emitted=frozenset((monitor._book.emission(output()),))) if what == "NoLost" else Ledger()
    staged = ((ID, Partition(((staged_key(ID, TX).id, Doc(b"{}", 1)),))),)
    left = staged if what.endswith("record") else store, bus, (("overflow/x", 1),) if what.endswith("blob") else blobs
    found = monitor.final(ghost, left, NOW_MS)[0]
    assert found.promise == what.partition(" ")[0] and ("never left" in found.text) == (found.promise == "NoLost")


@pytest.mark.parametrize(("n", "c"), [(1, 3), (3, 1)])
def test_a_checkpoint_falls_back_neither_in_its_number_nor_in_its_position(n: int, c: int) -> None:
    monitor = PipelineMonitor([Counting(Engine.in_memory()).pipeline.plan()], [], {}, 0)
    before, after = (
        monitor._kept(encode(PipelineRegister(version=1, graph="g", source="s", stands=Checkpoint(at[0], at[1], {}))))
        for at in ((2, Position(2)), (n, Position(c)))
    )
    found = monitor.step(PipelineGhost((), before), [("register", after)])
    assert isinstance(found, Finding) and found.promise == "Monotone"
