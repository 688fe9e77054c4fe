"""The ledger that all protocols' monitors share: messages applied and refused, outputs emitted, and their order.

A ledger is a value that grows with each effect, and the place where a second effect shows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Set
from hashlib import blake2b

import msgspec

from outbox.lineage import fingerprint
from outbox.message import Message
from outbox.ports import Output
from outbox.runtime.verdict import OnRecord as Kind
from outbox.runtime.verdict import StoredRecord, kind_of
from outbox.verify.explorer.ops import Finding, canonical, short
from outbox.verify.promises.reference import Handling, Reference, SideEffect

UNPROCESSABLE = 422
"""The status of a response to a request under another's key."""

OnRecord = tuple[bytes, bytes, str]
"""The record of a request: inbox key, the payload's fingerprint, the response's digest."""

Again = tuple[bytes, int]
"""A resubmission: inbox key, and which attempt it is."""

Payload = tuple[bytes, bytes]
"""Inbox key, and the fingerprint of a payload that is on record for it."""

Edit = tuple[bytes, int, bytes, bytes]
"""A resubmission by its payloads: inbox key, attempt, the fingerprint of its payload, and of the refused one."""

Emission = tuple[str, str, bytes]
"""A committed output: destination, identity, digest of all of it."""


class Ledger(msgspec.Struct, frozen=True):
    """The effects so far: inbox keys applied, refused and quarantined; outputs committed and pushed."""

    applied: frozenset[bytes] = frozenset()
    refused: frozenset[bytes] = frozenset()
    fenced: frozenset[bytes] = frozenset()
    emitted: frozenset[Emission] = frozenset()
    pushed: frozenset[tuple[str, str]] = frozenset()
    staged: frozenset[tuple[str, bytes]] = frozenset()
    """The staged bodies of item scope, by transaction."""
    pointers: frozenset[tuple[str, str]] = frozenset()
    """Item scope: states that point to a transaction."""
    called: frozenset[str] = frozenset()
    """The idempotency keys under which something outside was called."""
    replies: frozenset[OnRecord] = frozenset()
    refused_again: frozenset[Again] = frozenset()
    """Of refusals that are not of a first attempt, which they are of."""
    edits: frozenset[Edit] = frozenset()
    """The resubmissions, with their payloads: those of an edit differ."""
    payloads: frozenset[Payload] = frozenset()
    """The payload of the last refusal."""
    replaced: frozenset[Payload] = frozenset()
    """The refused payloads that edits took the place of."""
    readable: frozenset[tuple[str, str]] = frozenset()
    """Reads, by name, and the digests of the responses that the states committed so far give to them."""


class Applied(msgspec.Struct, frozen=True):
    """The meaning of a commit: what it applied, refused and emits, and whose inputs it settles for good."""

    applied: tuple[bytes, ...] = ()
    refused: tuple[bytes, ...] = ()
    emitted: tuple[Emission, ...] = ()
    settled: tuple[bytes, ...] = ()
    fenced: tuple[bytes, ...] = ()
    """Refused because of their age: their records may be forgotten by then, and they do not take effect."""
    replies: tuple[OnRecord, ...] = ()
    """The replies to requests from here on."""
    again: tuple[Again, ...] = ()
    """The part of it that is of a resubmission."""
    payloads: tuple[Payload, ...] = ()
    """The payloads of what it applied and refused."""
    unfounded: tuple[bytes, ...] = ()
    """Refused as edits of nothing, and younger than retention."""
    differing: tuple[Payload, ...] = ()
    """Dead-lettered because their payloads are others than those on record."""
    cancelled: tuple[bytes, ...] = ()
    """The applied keys on record as cancelled, which is no effect."""


class Resubmitted(msgspec.Struct, frozen=True):
    """The meaning of a dead letter that goes to its queue again, unchanged or edited."""

    edits: tuple[Edit, ...]


class Differs(msgspec.Struct, frozen=True):
    """The meaning of a message that is dead-lettered because its payload is another than that on record."""

    payloads: tuple[Payload, ...]


class Pushed(msgspec.Struct, frozen=True):
    """The meaning of a send: what has left."""

    outputs: tuple[Emission, ...] = ()


class Marked(msgspec.Struct, frozen=True):
    """The meaning of a write that says of handlings that their outputs have left."""

    inboxes: tuple[bytes, ...] = ()


class SettledHandlings(msgspec.Struct, frozen=True):
    """The meaning of a settlement that was the last of its message; `dead_lettered` as a dead letter."""

    inboxes: tuple[bytes, ...] = ()
    dead_lettered: bool = False


class Answered(msgspec.Struct, frozen=True):
    """The meaning of a response that a client takes for final."""

    inbox: bytes
    payload: bytes
    status: int
    reply: str


class Readable(msgspec.Struct, frozen=True):
    """The meaning of a call, and what reads are answered with in the states after it."""

    event: Hashable
    answers: frozenset[tuple[str, str]]


class ReadAnswered(msgspec.Struct, frozen=True):
    """The meaning of a response to a read."""

    name: str
    reply: str


class SessionOrder:
    """The sessions of ordered queues: there a handling waits until all before it in its session has ended.

    Only of what was there from the beginning is the order known; outputs arrive as their causes are committed.
    """

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], list[bytes]] = {}
        self._session_of: dict[bytes, list[bytes]] = {}
        self._ahead: dict[bytes, tuple[bytes, ...]] = {}
        self._blocking: set[bytes] = set()

    def add(self, path: str, session_id: str, handlings: Iterable[Handling]) -> None:
        """Append a message to its session; a copy takes the place of the first."""
        session = self._sessions.setdefault((path, session_id), [])
        ahead = tuple(session)
        for handling in handlings:
            if handling.inbox not in session:
                session.append(handling.inbox)
                self._ahead[handling.inbox] = ahead
                self._session_of[handling.inbox] = session
            if handling.handler.on_dead_letter == "stop_key":
                self._blocking.add(handling.inbox)

    def is_blocked(self, inbox: bytes, dead: Set[bytes], applied: Set[bytes]) -> bool:
        """Whether the session of a handling is blocked, by what precedes it or by a copy of itself.

        Of what is applied only copies are left, and these may lie behind anything in the session.
        """
        ahead: Iterable[bytes] = (self._session_of if inbox in applied else self._ahead).get(inbox, ())
        return any(other in self._blocking and other in dead for other in (*ahead, inbox))

    def wrong(
        self, applied: Iterable[bytes], ended: Set[bytes], refused: Set[bytes]
    ) -> tuple[bytes, bytes, str] | None:
        """The handling that takes effect before its turn or in a blocked session, and the one before it."""
        for inbox in applied:
            for earlier in self._ahead.get(inbox, ()):
                if earlier not in ended:
                    return inbox, earlier, "takes effect before what precedes it:"
            for earlier in self._ahead.get(inbox, ()):
                if earlier in self._blocking and earlier in refused:
                    return inbox, earlier, "takes effect, though its session is blocked by"
        return None


class Book:
    """Messages, handlings and routes by name, for monitors and their texts.

    No worker's retention is below `retention_ms_min`, so nothing younger may be refused for its age.  `edits` may be
    sent in place of refused messages.
    """

    def __init__(
        self,
        reference: Reference,
        routes: Mapping[str, Iterable[str]],
        sent: Iterable[Output],
        *,
        edits: Iterable[Output] = (),
        retention_ms_min: int,
    ) -> None:
        self.reference = reference
        self._retention_ms_min = retention_ms_min
        self.routes = {name: tuple(paths) for name, paths in routes.items()}
        self.sent = tuple(sent)
        self._messages: dict[Emission, Message] = {}
        """The messages by emission, because an output sent under one identity may depend on its past."""
        self._variants: dict[tuple[str, str], list[Message]] = {}
        self._names: dict[bytes, str] = {}
        self._handlings: dict[bytes, dict[bytes, Handling]] = {}
        """By inbox key and payload."""
        self._shared: dict[bytes, str] = {}
        """Inbox keys that two handlers have in common, and which."""
        self.cancellable: set[bytes] = set()
        """The inbox keys for which a cancellation is known."""
        self.requests: set[bytes] = set()
        """The inbox keys of requests: no queue delivers them."""
        self._sessions = SessionOrder()
        for output in self.sent:
            self.emission(output)
            for path in self.routes.get(output.destination, ()):
                source = reference.plan.sources.get(path)
                if source is not None and source.ordered:
                    self._sessions.add(path, output.message.session_id, self.handlings(path, output.message))
        sent_so = {(inbox, payload) for inbox, payloads in self._handlings.items() for payload in payloads}
        for output in edits:
            self.emission(output)
        known = {(inbox, payload) for inbox, payloads in self._handlings.items() for payload in payloads}
        self._edited = known - sent_so
        """The payloads that are sent as edits only."""

    def emission(self, output: Output) -> Emission:
        """The emission of an output, whose message and its consequences are known from then on."""
        emission = digest_of(output)
        if emission not in self._messages:
            self._messages[emission] = output.message
            self._variants.setdefault(emission[:2], []).append(output.message)
            self.caused(output.destination, output.message)
        return emission

    def handlings(self, path: str, message: Message) -> tuple[Handling, ...]:
        """The handlings that a message of a queue causes."""
        found = self.reference.handlings(path, message)
        for handling in found:
            if handling.cancels:
                self.cancellable.add(handling.inbox)
                continue
            payloads = self._handlings.setdefault(handling.inbox, {})
            payloads.setdefault(fingerprint(handling.message.body, message.type), handling)
            known = next(iter(payloads.values()))
            self._names[handling.inbox] = f"{short(message.identity)} ({handling.handler.name})"
            if known.handler.name != handling.handler.name:
                self._shared[handling.inbox] = f"{known.handler.name} and {handling.handler.name}"
        return found

    def expect(self, handling: Handling, payload: bytes) -> None:
        """Know what a request sets off, by its payload's fingerprint."""
        self._handlings.setdefault(handling.inbox, {})[payload] = handling
        self._names[handling.inbox] = handling.name
        self.requests.add(handling.inbox)

    def find(self, inbox: bytes, payload: bytes) -> Handling | None:
        """The handling of an inbox key and a payload's fingerprint, if there is such a message."""
        payloads = self._handlings.get(inbox, {})
        return payloads.get(payload) or next(iter(payloads.values()), None)

    def variants(self, destination: str, identity: str) -> list[Message]:
        """All that may be sent to a destination under an identity."""
        return self._variants.get((destination, identity), [])

    def name(self, inbox: bytes) -> str:
        """An inbox key as findings name it."""
        return self._names.get(inbox, inbox.hex()[:8])

    def apply(self, ledger: Ledger, event: Applied) -> Ledger | Finding:
        """A ledger after a commit."""
        for inbox in event.applied:
            if inbox in self._shared:
                text = f"{self._shared[inbox]} have one inbox key for {self.name(inbox)}: one swallows the other's part"
                return Finding("EveryMessageEnds", text)
            if (
                inbox in event.cancelled
            ):  # where it took effect before, and the record of that is gone, nothing does now
                continue
            if inbox in ledger.applied or event.applied.count(inbox) > 1:
                return Finding("NoDuplicate", f"{self.name(inbox)} took effect twice")
            if inbox in ledger.refused and not _may_be_tried(ledger, event, inbox):
                return Finding("NoDuplicate", f"{self.name(inbox)} was refused, and takes effect all the same")
        for inbox in event.refused:
            if inbox in ledger.applied:
                return Finding("NoDuplicate", f"{self.name(inbox)} took effect, and is refused all the same")
        wrong = self._out_of_order(ledger, event) or self._unnamed(ledger, event)
        if wrong is not None:
            return wrong
        known = {(destination, identity): digest for destination, identity, digest in ledger.emitted}
        for destination, identity, digest in event.emitted:
            if known.get((destination, identity), digest) != digest:
                return Finding("ConsistentOutput", f"output {short(identity)} to {destination} has two payloads")
            if (destination, identity) in known:
                return Finding("NoDuplicate", f"output {short(identity)} to {destination} was committed twice")
        ended = {*event.applied, *event.refused}
        payloads = dict(ledger.payloads)
        gone = {(inbox, payloads[inbox]) for inbox, new in event.payloads if payloads.get(inbox, new) != new}
        payloads |= {inbox: payload for inbox, payload in event.payloads if inbox in event.refused}
        after = msgspec.structs.replace(
            ledger,
            applied=ledger.applied.union(event.applied),
            refused=ledger.refused.difference(event.applied).union(event.refused),
            refused_again=frozenset(again for again in ledger.refused_again if again[0] not in ended).union(
                again for again in event.again if again[0] in event.refused
            ),
            fenced=ledger.fenced.union(i for i in event.fenced if i not in ledger.applied),
            emitted=ledger.emitted.union(event.emitted),
            replies=ledger.replies.union(event.replies),
            payloads=frozenset(payloads.items()),
            replaced=ledger.replaced.union(gone),
        )
        differs = self.differ(ledger, Differs(event.differing))
        return self.early(after, event.settled) or (differs if isinstance(differs, Finding) else after)

    def _unnamed(self, ledger: Ledger, event: Applied) -> Finding | None:
        """An edit that replaces another refusal than the one it names, or is refused in spite of it."""
        refused = dict(ledger.payloads)
        named = {(inbox, payload, over) for inbox, _, payload, over in ledger.edits}
        for inbox, payload in event.payloads:
            over = refused.get(inbox)
            if over == payload or (over is None and (inbox, payload) not in self._edited):
                continue
            if over is None or (inbox, payload, over) not in named:
                return Finding("NoDuplicate", f"{self.name(inbox)} is edited, in place of what the edit does not name")
        for inbox in event.unfounded:
            if inbox in ledger.applied or inbox in ledger.refused:
                return Finding("NoDeadLetter", f"{self.name(inbox)} is refused as an edit of nothing, and is on record")
        return None

    def _out_of_order(self, ledger: Ledger, event: Applied) -> Finding | None:
        ended = ledger.applied.union(ledger.refused, ledger.fenced, event.applied, event.refused, event.fenced)
        found = self._sessions.wrong(
            event.applied, ended, ledger.refused.difference(event.applied).union(event.refused)
        )
        if found is None:
            return None
        inbox, other, relation = found
        return Finding("InOrder", f"{self.name(inbox)} {relation} {self.name(other)}")

    def is_blocked(self, ledger: Ledger, path: str, message: Message) -> bool:
        """Whether the session of a message has stopped behind one that was refused, by its handler or for its age."""
        dead = ledger.refused | (ledger.fenced - ledger.applied)
        return any(self._sessions.is_blocked(h.inbox, dead, ledger.applied) for h in self.handlings(path, message))

    def resubmit(self, ledger: Ledger, event: Resubmitted) -> Ledger:
        """A ledger after a resubmission."""
        return msgspec.structs.replace(ledger, edits=ledger.edits.union(event.edits))

    def differ(self, ledger: Ledger, event: Differs) -> Ledger | Finding:
        """A ledger after a payload was dead-lettered as another, which must not be one that an edit replaced."""
        for inbox, payload in event.payloads:
            if (inbox, payload) in ledger.replaced:
                text = "is dead-lettered for its payload, which an edit has replaced"
                return Finding("NoDeadLetter", f"a copy of {self.name(inbox)} {text}")
        return ledger

    def push(self, ledger: Ledger, event: Pushed) -> Ledger | Finding:
        """A ledger after a send: every output that leaves was committed, and is unchanged."""
        known = {(destination, identity): digest for destination, identity, digest in ledger.emitted}
        for destination, identity, digest in event.outputs:
            if (destination, identity) not in known:
                return Finding("NoGhost", f"output {short(identity)} to {destination} leaves and is not committed")
            if known[destination, identity] != digest:
                return Finding("ConsistentOutput", f"output {short(identity)} leaves otherwise than it was committed")
        return msgspec.structs.replace(ledger, pushed=ledger.pushed.union(output[:2] for output in event.outputs))

    def mark(self, ledger: Ledger, event: Marked) -> Ledger | Finding:
        """A ledger after a mark, which may only say the truth."""
        wrong = self.early(ledger, event.inboxes)
        if wrong is not None:
            return wrong
        causes = {inbox.hex() for inbox in event.inboxes}
        for destination, identity, _ in ledger.emitted:
            if identity.rpartition("-")[0] in causes and (destination, identity) not in ledger.pushed:
                return Finding("NoLost", f"output {short(identity)} is marked as sent, and has not left")
        return ledger

    def settle(self, ledger: Ledger, event: SettledHandlings) -> Ledger | Finding:
        """A ledger after the last settlement of a message."""
        for inbox in event.inboxes if event.dead_lettered else ():
            if inbox in ledger.applied and not any(inbox == edit[0] for edit in ledger.edits):
                return Finding("NoDuplicate", f"{self.name(inbox)} took effect, and is dead-lettered all the same")
        return self.early(ledger, event.inboxes) or ledger

    def note(self, ledger: Ledger, side_effect: SideEffect) -> Ledger | Finding:
        """A ledger after something that no commit takes back."""
        if side_effect.what != "call":
            return Finding("StaysInside", f"a handler reaches outside by itself: {side_effect.key}; use ctx.call")
        if side_effect.key in ledger.called:
            inbox = bytes.fromhex(side_effect.key[:64])
            text = "makes a call of ctx.call twice, under one key"
            return Finding("OneCall", f"{self.name(inbox)} {text}; if the other side knows it, say idempotent=True")
        return msgspec.structs.replace(ledger, called=ledger.called | {side_effect.key})

    def answer(self, ledger: Ledger, event: Answered) -> Ledger | Finding:
        """A ledger after a response: what it says is on record."""
        if (event.inbox, event.payload, event.reply) in ledger.replies:
            return ledger
        name = self.name(event.inbox)
        is_own = any((event.inbox, event.payload) == known[:2] for known in ledger.replies)
        if event.status == UNPROCESSABLE and not is_own and len(self._handlings[event.inbox]) > 1:
            return ledger  # another request was first under this key
        if has_ended(ledger, event.inbox):
            return Finding("OneAnswer", f"{name} is answered {event.status}, and not as its commit has on record")
        return Finding("NothingLeavesEarly", f"{name} is answered {event.status}, but its effect is not committed")

    def answer_read(self, ledger: Ledger, event: ReadAnswered) -> Ledger | Finding:
        """A ledger after a response to a read: some state that was committed gives it."""
        if (event.name, event.reply) in ledger.readable:
            return ledger
        return Finding("NothingLeavesEarly", f"{event.name} is answered from a state that is not committed")

    def not_old(self, handling: Handling, refusal: StoredRecord, at_ms: int) -> Finding | None:
        """A refusal by the age fence of a message that is younger than retention."""
        created_ms = handling.message.created_ms
        is_young = created_ms > at_ms - self._retention_ms_min
        if not (created_ms and is_young) or kind_of(refusal) is not Kind.REFUSED_FOR_AGE:
            return None
        return Finding("NoDeadLetter", f"{self.name(handling.inbox)} is too-old, and younger than retention")

    def is_unfounded(self, handling: Handling, refusal: StoredRecord, at_ms: int) -> bool:
        """Whether a message was refused as an edit of nothing while it was younger than retention."""
        is_young = handling.message.created_ms > at_ms - self._retention_ms_min
        return is_young and kind_of(refusal) is Kind.EDIT_WITHOUT_RECORD

    def unasked(self, ledger: Ledger, handlings: Iterable[Handling]) -> Finding | None:
        """A resubmission that came to nothing, though it was not too old: its handler was not asked."""
        asked, last = dict(ledger.refused_again), dict(ledger.payloads)
        for inbox, attempt, *payloads in ledger.edits:
            if (
                inbox in ledger.refused - ledger.fenced
                and attempt > asked.get(inbox, 0)
                and last[inbox] in payloads
                and any(h.inbox == inbox for h in handlings)
            ):
                text = "was resubmitted, and refused again without asking its handler"
                return Finding("EveryMessageEnds", f"{self.name(inbox)} {text}")
        return None

    def early(self, ledger: Ledger, settled: Iterable[bytes]) -> Finding | None:
        """An input that is settled for good though nothing of it is committed."""
        for inbox in settled:
            if not has_ended(ledger, inbox):
                return Finding("NothingLeavesEarly", f"{self.name(inbox)} is settled, but its effect is not committed")
        return None

    def logical(self, ledger: Ledger) -> list[tuple[str, Message]]:
        """Every message once: the ones sent, and the committed outputs."""
        found = {(output.destination, output.message.identity): output.message for output in self.sent}
        for emission in ledger.emitted:
            found[emission[:2]] = self._messages[emission]
        return [(destination, message) for (destination, _), message in sorted(found.items(), key=lambda item: item[0])]

    def caused(self, destination: str, message: Message) -> list[Handling]:
        """The handlings that a message causes wherever its destination leads."""
        return [h for path in self.routes.get(destination, ()) for h in self.handlings(path, message)]

    def open(self, ledger: Ledger, destination: str, message: Message) -> bool:
        """Whether a message is still to be handled, by one handler at least; one without a reader always is.

        What was quarantined for its age is: no handler has decided anything about it.
        """
        handlings = self.caused(destination, message)
        return not handlings or any(h.inbox not in ledger.applied and h.inbox not in ledger.refused for h in handlings)


def resubmitted(handlings: Iterable[Handling], message: Message) -> Resubmitted:
    """The meaning of a resubmission that sets this off."""
    payload = fingerprint(message.body, message.type)
    over = payload if message.replaces is None else message.replaces
    return Resubmitted(tuple((handling.inbox, message.attempt, payload, over) for handling in handlings))


def differing(handlings: Iterable[Handling], message: Message) -> Differs:
    """The meaning of a dead letter of this payload, which sets this off."""
    return Differs(tuple((handling.inbox, fingerprint(message.body, message.type)) for handling in handlings))


def digest_of(output: Output) -> Emission:
    """The digest that tells an output from others."""
    return output.destination, output.message.identity, blake2b(canonical(output), digest_size=12).digest()


def _may_be_tried(ledger: Ledger, event: Applied, inbox: bytes) -> bool:
    """Whether a refused message was resubmitted since, as the attempt of this commit."""
    attempt = dict(event.again).get(inbox, 0)
    last = dict(ledger.refused_again).get(inbox, 0)
    return attempt > last and any(edit[:2] == (inbox, attempt) for edit in ledger.edits)


def has_ended(ledger: Ledger, inbox: bytes) -> bool:
    """Whether a handling has ended: applied, refused or quarantined."""
    return inbox in ledger.applied or inbox in ledger.refused or inbox in ledger.fenced
