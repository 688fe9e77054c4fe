"""The calls of ports as lines that a person reads: when, who, what was called, and what came back.

A `Page` is one transcript in the making, with the story's time.  `RecordedStore`, `RecordedBus`, `RecordedBlobs` and
`RecordedJournal` stand round the ports of one process; a `Watch` writes each call down, or lets it fail as the story
says.  A call takes no time, so that one call more or less in a protocol changes its own lines and no others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from outbox.errors import OutboxError, OutcomeUnknown
from outbox.ports import (
    BlobStore,
    Commit,
    Conflict,
    Delivery,
    Document,
    DocumentKey,
    Journal,
    Lost,
    Marker,
    MessageBus,
    Output,
    Session,
    Settle,
    StateDocument,
    StateStore,
    StoreCapabilities,
    Won,
    Write,
)
from outbox.testing import START_S, VirtualClock
from outbox.verify.faults import SimulatedCrash
from tests.transcripts.wording import Words, span, wrapped

Result = TypeVar("Result")
FaultKind = Literal["killed before", "killed after", "reply lost", "never arrives", "meanwhile"]

WIDTH = 120
"""How long a line may be before its answer stands on a line of its own."""
TIME_WIDTH = 9
WHO_WIDTH = 9
VERB_WIDTH = 11


class Page:
    """One transcript in the making."""

    def __init__(self) -> None:
        self.words = Words()
        self.clock = VirtualClock(START_S)
        self.now_ms = self.clock.wall_ms
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        """The page so far."""
        return "\n".join(self._lines).strip() + "\n"

    def title(self, title: str, about: str) -> None:
        """Head the page, and say what is about to happen and which promise it shows."""
        self._lines += [title, "=" * len(title), "", *wrapped(about, WIDTH)]

    def section(self, title: str, about: str) -> None:
        """Begin the story in another scope; its time and its names start anew."""
        self.words = Words()
        self.clock = VirtualClock(START_S)
        self.now_ms = self.clock.wall_ms
        self._lines += ["", "", title, "-" * len(title), "", *wrapped(about, WIDTH), ""]

    def line(self, who: str, verb: str, *said: str, answer: str = "") -> None:
        """Write down a call, and what came back; what does not fit goes on below."""
        head = f"{self._time()}  {who:{WHO_WIDTH}}  {verb:{VERB_WIDTH}} "
        width = WIDTH - len(head)
        if answer and len(said) < 2 and len("".join(said)) + len(answer) + 4 <= width:
            said = (" ".join([*said, f"-> {answer}"]),)
        elif answer:
            said = (*said, f"-> {answer}")
        lines = [part for text in said for part in wrapped(text, width, "    ")]
        margins = [head, *[" " * len(head)] * len(lines)]
        self._lines += [margin + line for margin, line in zip(margins, lines, strict=False)]

    def event(self, text: str) -> None:
        """Write down what is not a call: a fault, time that passes."""
        self._lines.append(f"{self._time()}  -- {text} --")

    def ending(self, lines: Sequence[tuple[str, str]]) -> None:
        """Say how things are in the end."""
        margin = " " * 17
        parts = [part for what, how in lines for part in wrapped(f"  {what:14} {how}", WIDTH, margin)]
        self._lines += ["", "In the end:", *parts]

    def _time(self) -> str:
        return f"{span(self.clock.seconds - START_S):>{TIME_WIDTH}}"


@dataclass(slots=True)
class Fault:
    """What happens at the next call of a name: before it, instead of it, or to its reply."""

    call: str
    kind: FaultKind
    meanwhile: Callable[[], Awaitable[None]] | None = None


class Watch:
    """Writes down the calls of one process, and lets those fail that the story names."""

    def __init__(self, page: Page, who: str, *, meet: Callable[[Delivery], None]) -> None:
        self.page = page
        self.words = page.words
        self.who = who
        self.meet = meet
        """Learns the names of what comes with a delivery, before it is written down."""
        self.faults: list[Fault] = []

    async def call(
        self,
        verb: str,
        said: Sequence[str],
        make: Callable[[], Awaitable[Result]],
        answer: Callable[[Result], str],
        name: str = "",
    ) -> Result:
        """Make one call of a port, called `name` by stories where that is not the verb, and write it down."""
        fault = next((fault for fault in self.faults if fault.call == (name or verb)), None)
        if fault is not None:
            self.faults.remove(fault)
        kind = "" if fault is None else fault.kind
        if fault is not None and fault.meanwhile is not None:
            await fault.meanwhile()
        if kind == "killed before":
            raise self._killed()
        if kind == "never arrives":
            self.page.line(self.who, verb, *said, answer="no answer")
            self.page.event("the call never arrived")
            raise OutcomeUnknown("the call never arrived")
        try:
            result = await make()
        except OutboxError as error:
            self.page.line(self.who, verb, *said, answer=f"raises {type(error).__name__}")
            raise
        if kind == "reply lost":
            self.page.line(self.who, verb, *said, answer="no answer")
            self.page.event("the call took effect, its reply is lost")
            raise OutcomeUnknown("the reply is lost")
        self.page.line(self.who, verb, *said, answer=answer(result))
        if kind == "killed after":
            raise self._killed()
        return result

    def _killed(self) -> SimulatedCrash:
        self.page.event(f"{self.who} is killed")
        return SimulatedCrash(self.who)

    def deliveries(self, deliveries: Sequence[Delivery]) -> str:
        """What a process has been handed."""
        for delivery in deliveries:
            self.meet(delivery)
        return ", ".join(map(self.words.delivery, deliveries)) or "nothing"


def _done(_: object) -> str:
    return "done"


class RecordedStore:
    """A state store whose calls are written down; `item_bytes_max` makes its documents small."""

    def __init__(self, store: StateStore, watch: Watch, *, item_bytes_max: int = 0) -> None:
        self._store = store
        self._watch = watch
        known = store.capabilities
        self.capabilities = StoreCapabilities(
            known.atomic_scope,
            known.batch_count_max,
            item_bytes_max or known.item_bytes_max,
            known.tells_current,
            ambiguous_replies=True,
            ordered_versions=known.ordered_versions,
        )

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        words = self._watch.words
        return await self._watch.call(
            "read", [words.place(key)], lambda: self._store.read(key, session=session), words.document
        )

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        words = self._watch.words

        def answer(found: Won | Lost) -> str:
            if isinstance(found, Lost):
                return words.lost(found, tuple(operations))
            for operation, version in zip(operations, found.versions, strict=True):
                words.etag(operation.key, version)
            return "won"

        said = [words.write(operation) for operation in operations]
        name = operations[0].tag.what
        return await self._watch.call("write", said, lambda: self._store.write(operations), answer, name)

    def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        return self._store.scan(partition, prefix=prefix)

    async def unfinished(self) -> AsyncIterator[Document]:
        page, words = self._watch.page, self._watch.words
        async for document in self._store.unfinished():
            page.line(self._watch.who, "unfinished", words.place(document.key), answer=words.document(document))
            yield document


class RecordedBus:
    """A message bus whose calls are written down."""

    def __init__(self, bus: MessageBus, watch: Watch) -> None:
        self._bus = bus
        self._watch = watch

    async def send(self, outputs: Sequence[Output]) -> None:
        said = [self._watch.words.output(output) for output in outputs]
        await self._watch.call("send", said, lambda: self._bus.send(outputs), _done)

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        return await self._watch.call(
            "receive",
            [queue],
            lambda: self._bus.receive(queue, count_max=count_max, wait_s=wait_s),
            self._watch.deliveries,
        )

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        words, reason = self._watch.words, f" {settle.reason!r}" if settle.reason else ""
        rests = f", due in {(settle.due_ms - self._watch.page.now_ms()) / 1_000:g} s" if settle.due_ms else ""
        said = [f"{words.message(delivery.message)}{reason}{rests}"]
        await self._watch.call(settle.how, said, lambda: self._bus.settle(delivery, settle), _done)

    async def renew(self, delivery: Delivery) -> int:
        said = [self._watch.words.message(delivery.message)]
        return await self._watch.call("renew", said, lambda: self._bus.renew(delivery), _done)


class RecordedBlobs:
    """A blob store whose calls are written down."""

    def __init__(self, blobs: BlobStore, watch: Watch) -> None:
        self._blobs = blobs
        self._watch = watch

    async def write(self, name: str, data: bytes) -> bool:
        said = [f"{self._watch.words.name(name)}, {len(data)} bytes"]
        return await self._watch.call(
            "write blob", said, lambda: self._blobs.write(name, data), lambda new: "new" if new else "there"
        )

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        said = [self._watch.words.name(name)]
        return await self._watch.call(
            "read blob",
            said,
            lambda: self._blobs.read(name, bytes_max=bytes_max),
            lambda found: "none" if found is None else f"{len(found)} bytes",
        )

    async def delete(self, name: str) -> None:
        said = [self._watch.words.name(name)]
        await self._watch.call("delete blob", said, lambda: self._blobs.delete(name), _done)


class RecordedJournal:
    """A journal whose calls are written down."""

    def __init__(self, journal: Journal, watch: Watch) -> None:
        self._journal = journal
        self._watch = watch

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        return await self._watch.call(
            "claim",
            [", ".join(queues)],
            lambda: self._journal.claim(queues, count_max=count_max, wait_s=wait_s),
            self._watch.deliveries,
        )

    async def load(
        self, states: Sequence[str], markers: Sequence[bytes]
    ) -> tuple[dict[str, StateDocument], dict[bytes, Marker]]:
        words = self._watch.words

        def answer(found: tuple[dict[str, StateDocument], dict[bytes, Marker]]) -> str:
            parts = [words.state(id, document) for id, document in found[0].items()]
            parts += [f"marker: {words.marker(inbox, marker)}" for inbox, marker in found[1].items()]
            return "; ".join(parts) or "none"

        asked = [*states, *(f"marker of {words.name(inbox.hex())}" for inbox in markers)]
        said = [", ".join(dict.fromkeys(asked))]
        return await self._watch.call("load", said, lambda: self._journal.load(states, markers), answer)

    async def commit(self, commit: Commit) -> Conflict | None:
        words = self._watch.words
        return await self._watch.call(
            "commit",
            words.commit(commit),
            lambda: self._journal.commit(commit),
            lambda found: "committed" if found is None else words.conflict(found),
        )

    async def durable(self) -> None:
        await self._watch.call("durable", [], self._journal.durable, _done)

    async def renew(self, deliveries: Sequence[Delivery]) -> int:
        return await self._watch.call(
            "renew",
            self._ids(deliveries),
            lambda: self._journal.renew(deliveries),
            lambda count: f"{count} of {len(deliveries)} still ours",
        )

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        said = self._ids(deliveries)
        await self._watch.call("release", said, lambda: self._journal.release(deliveries), _done)

    def _ids(self, deliveries: Sequence[Delivery]) -> list[str]:
        return [", ".join(self._watch.words.message(delivery.message) for delivery in deliveries)]


_store: type[StateStore] = RecordedStore
_bus: type[MessageBus] = RecordedBus
_blobs: type[BlobStore] = RecordedBlobs
_journal: type[Journal] = RecordedJournal
