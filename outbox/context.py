"""The context of a handler, beside its message and state.

A context only **captures**: outputs and blobs take effect with the commit, or never.  Ids, randomness and time are
fixed by the message and the commit, so that every attempt at a message gets the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NoReturn, Protocol
from uuid import UUID

import msgspec

from outbox.cancellation import CANCELLATION_TYPE, cancelling_properties, read_ticket, ticket_text
from outbox.errors import HandlingEnded, OutcomeUnknown, PoisonMessage, Refused, UnknownDestination
from outbox.generators import check_result
from outbox.guards import Breaker, Rate
from outbox.http import Reply
from outbox.lineage import Key, derived_bytes, output_id, traceparent_of
from outbox.message import Message, Scalar
from outbox.ports import Output
from outbox.retries import Retry
from outbox.spark import SPARK_RUNS, RunId, run_request

CHAIN_GAP_MS = 1_000
"""An output due this much later begins a new chain: the limit of hops is for fast cycles."""

OUTPUT_COUNT_MAX = 10_000
"""How many outputs one message may have."""


class Way(msgspec.Struct, frozen=True, gc=False):
    """The route of one message type to one destination."""

    encode: Callable[[Any], bytes]
    wire_type: str
    is_ordered: bool
    """Whether each needs a session."""
    properties: dict[str, Scalar] | None = None
    """The wire properties with their schema version."""


class Outlet(Protocol):
    """The application as a context needs it: destinations and encoders."""

    claim_check_bytes: int
    hops_max: int
    """How many handlers a chain of messages may pass."""
    ways: dict[tuple[str, type], Way]
    """The routes found so far."""

    @property
    def jobs(self) -> Collection[str]:
        """The Spark jobs that may be submitted."""

    def way(self, destination: str, message_type: type[Any], kind: str) -> Way:
        """The route of a message type to a destination.

        Raises:
            UnknownDestination: the application never declared it.
        """
        ...

    def destination(self, name: str, kind: str = "queue") -> str:
        """A declared destination, unchanged.

        Raises:
            UnknownDestination: the application never declared it.
        """
        ...

    def session_of(self, destination: str, message: Any, key: Key | None) -> str:
        """The session of a message to a destination that is ordered by key."""
        ...


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A blob that a commit wrote: its name in the application's blob store, size in bytes and SHA-256."""

    name: str
    size_bytes: int
    digest: str


MILLISECONDS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def to_ms(when: datetime | float) -> int:
    """A time in milliseconds since 1970, from seconds or a datetime; one without a time zone is taken as UTC.

    Raises:
        ValueError: it lies beyond the years that a message can carry.
    """
    if isinstance(when, datetime):
        when = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
    if not -MILLISECONDS_MAX <= when * 1_000 <= MILLISECONDS_MAX:
        raise ValueError(f"{when} s since 1970 is not before the year 10000; give seconds or a datetime")
    return round(when * 1_000)


class Absent:
    """The type of `ABSENT`: the handler neither saved nor deleted its state."""


ABSENT = Absent()


class Ended:
    """Replaces the fields of a sealed context: every use raises HandlingEnded."""

    def __init__(self, why: str) -> None:
        self.__why = why

    def _raise(self, *asked: object) -> NoReturn:
        raise HandlingEnded(self.__why)

    __getattr__ = __call__ = __truediv__ = __len__ = __iter__ = __add__ = __radd__ = _raise


class Context(msgspec.Struct, gc=False):
    """The context of one attempt at one message.

    The fields are the runtime's; a handler uses the methods and properties.
    """

    outlet: Outlet
    work: Any
    message: Message
    now_ms: int
    durable: Callable[[], Awaitable[None]]
    outputs: list[Output] = []
    replaced: Any = ABSENT
    blobs: list[tuple[str, bytes]] | None = None
    draw_count: int = 0
    call_count: int = 0
    is_plain: bool = True
    """Whether it captured nothing but outputs within the claim-check limit."""
    answer: Reply | None = None
    """The reply to an HTTP request."""
    passed: tuple[Any, ...] = ()
    """The guards that have let a call of this attempt through."""
    trace: str = ""
    """The W3C trace context of outputs, set by a middleware; empty: the message's trace, with a span of its own."""
    is_broken_off: bool = False
    """Whether the handler is cancelled to run again on its own, which is no failure of what it calls."""

    # Who and what

    @property
    def key(self) -> Key | None:
        """The key of the message; None in a stateless handler."""
        key: Key | None = self.work.key
        return key

    @property
    def message_id(self) -> str:
        """The identity of the message: the same for every redelivery and duplicate."""
        return self.message.identity

    @property
    def idempotency_key(self) -> str:
        """A key for calls to other systems: the same for every attempt at this message by this handler."""
        return str(self.work.inbox.hex())

    @property
    def caller(self) -> str:
        """The caller of the HTTP request, by its entry's `caller=`; empty without one, and for messages."""
        return str(self.work.caller)

    @property
    def delivery_count(self) -> int:
        """The number of this delivery, from 1."""
        return int(self.work.delivery_count)

    @property
    def correlation_id(self) -> str:
        """The id of the whole conversation: inherited, or the first message's identity."""
        return self.message.correlation_id or self.message.identity

    @property
    def causation_id(self) -> str:
        """The identity of the message whose handler sent this one; empty for a first message."""
        return self.message.causation_id

    @property
    def traceparent(self) -> str:
        """The W3C trace context that the message carries; empty without one.  What is sent has a span of its own."""
        return self.message.traceparent

    # Fixed by the commit

    def now(self) -> float:
        """The time of this attempt's commit, in seconds since 1970."""
        return self.now_ms / 1_000

    def random(self) -> float:
        """A number in [0, 1) that is the same for every attempt at this message."""
        return int.from_bytes(self._drawn("random")[:7], "big") / (1 << 56)

    def uuid(self) -> UUID:
        """A UUID that is the same for every attempt at this message."""
        return UUID(bytes=self._drawn("uuid")[:16], version=4)

    def _drawn(self, purpose: str) -> bytes:
        self.draw_count += 1
        return derived_bytes(self.work.inbox, purpose, self.draw_count)

    # Effects

    def send(
        self, queue: str, message: Any, *, after_s: float | None = None, at: datetime | float | None = None
    ) -> None:
        """Send a message to a declared queue with this commit, visible at once, after a delay or at a time.

        `after_s` is seconds from now, `at` a datetime or seconds since 1970; give one of the two, or none.  The message
        is encoded now, so a later change of the object has no effect.

        Raises:
            UnknownDestination: the application never declared the queue.
            PoisonMessage: it holds what JSON cannot (`unstorable`: NaN, infinity, half of a surrogate pair); there are
                10,000 outputs already; or (`cycle`) this message has passed `App(hops_max=)` handlers, and the output
                is due in less than a second.
        """
        due_ms = 0 if after_s is None and at is None else self._due_ms(after_s, at)
        outputs, cause, work, now_ms = self.outputs, self.message, self.work, self.now_ms
        position, hops = len(outputs), cause.hops + 1
        kind_of, outlet = type(message), self.outlet
        if due_ms or hops > outlet.hops_max or position >= OUTPUT_COUNT_MAX:
            hops = self._hops(due_ms)
        way = outlet.ways.get((queue, kind_of)) or outlet.way(queue, kind_of, "queue")
        body = way.encode(message)
        if len(body) > outlet.claim_check_bytes:
            self.is_plain = False
        identity = cause.outbox_id or cause.message_id
        sent = Message(
            body=body,
            outbox_id=output_id(work.inbox, position),
            type=way.wire_type,
            created_ms=due_ms if due_ms > now_ms else now_ms,
            correlation_id=cause.correlation_id or identity,
            causation_id=identity,
            traceparent=self.trace or (traceparent_of(cause.traceparent, work.inbox) if cause.traceparent else ""),
            hops=hops,
            session_id=outlet.session_of(queue, message, work.key) if way.is_ordered else "",
            properties=way.properties,
        )
        outputs.append(Output(queue, due_ms, sent))

    def schedule(
        self, queue: str, message: Any, *, after_s: float | None = None, at: datetime | float | None = None
    ) -> str:
        """Send a message that is visible later: `after_s` seconds from now or `at` a time, one of the two.

        Returns its ticket, for `cancel`: a text to keep in the state, with the message in it.

        Raises:
            TypeError: neither is given, or both are.
            UnknownDestination: the application never declared the queue.
        """
        if (after_s is None) == (at is None):
            raise TypeError("schedule needs after_s= or at=, one of the two; send() has neither")
        self.send(queue, message, after_s=after_s, at=at)
        output = self.outputs[-1]
        return ticket_text(queue, output.message, output.due_ms)

    def cancel(self, ticket: str) -> None:
        """Cancel a scheduled message with this commit, by the ticket that `schedule` returned.

        What is sent is a cancellation, to the message's queue.  Handled before the message, it commits that this one
        has no effect; behind it, nothing is left to cancel.  So the message takes effect or is cancelled, never both,
        but one that comes due meanwhile may still be first: its handler looks whether it still matters.  Cancelling
        again, or what was handled long ago, does nothing.

        Raises:
            ValueError: it is no ticket.
            UnknownDestination: the application does not declare the message's queue any more.
            PoisonMessage: there are 10,000 outputs already.
        """
        asked, work, cause = read_ticket(ticket), self.work, self.message
        self.outlet.destination(asked.destination)
        position = len(self.outputs)
        if position >= OUTPUT_COUNT_MAX:
            self._hops(0)  # which says so
        if len(asked.body) > self.outlet.claim_check_bytes:
            self.is_plain = False
        identity = cause.outbox_id or cause.message_id
        sent = Message(
            body=asked.body,
            outbox_id=output_id(work.inbox, position),
            type=CANCELLATION_TYPE,
            created_ms=self.now_ms,
            correlation_id=cause.correlation_id or identity,
            causation_id=identity,
            traceparent=self.trace or traceparent_of(cause.traceparent, work.inbox),
            session_id=asked.session_id,
            properties=cancelling_properties(asked),
        )
        self.outputs.append(Output(asked.destination, 0, sent))

    def publish(
        self, topic: str, message: Any, *, after_s: float | None = None, at: datetime | float | None = None
    ) -> None:
        """Send a message to every subscription of a declared topic."""
        if (topic, type(message)) not in self.outlet.ways:
            self.outlet.way(topic, type(message), "topic")  # so that the error names a topic
        self.send(topic, message, after_s=after_s, at=at)

    def reply(self, message: Any) -> None:
        """Send a message to the handled message's `reply_to`, which must be declared.

        Raises:
            UnknownDestination: there is no `reply_to`, or the application never declared it.
        """
        if not self.message.reply_to:
            raise UnknownDestination(f"message {self.message_id} has no reply_to; set it when sending, or do not reply")
        self.send(self.message.reply_to, message)

    def submit_spark_job(self, job: str, arguments: Sequence[str] = ()) -> RunId:
        """Run a declared Spark job once with this commit; the run's id, the same for every attempt.

        `arguments` are those of the job's command line; they are shown in logs and consoles, so no secrets.

        Raises:
            UnknownDestination: the application never declared the job.
            NotRunnable: the arguments are too large, or hold a secret.
        """
        if job not in self.outlet.jobs:
            raise UnknownDestination(f"Spark job {job!r} was never declared; add app.spark_jobs({job!r}), or check it")
        self.send(SPARK_RUNS, run_request(job, arguments))
        return RunId(self.outputs[-1].message.outbox_id)

    def write_blob(self, name: str, data: bytes) -> BlobRef:
        """Write a blob before the commit; its full name holds this message's inbox key and the data's digest."""
        name.encode()  # refuses half of a surrogate pair
        digest = sha256(data).hexdigest()
        full = f"{self.work.inbox.hex()}/{digest[:16]}/{name}"
        self.is_plain = False
        if self.blobs is None:
            self.blobs = []
        self.blobs.append((full, bytes(data)))
        return BlobRef(full, len(data), digest)

    def save(self, state: Any) -> None:
        """Replace the state; None deletes it.

        Raises:
            TypeError: it is of another type, or the handler has no state.
        """
        kind = self._state_type()
        if state is not None and not isinstance(state, kind):
            raise TypeError(f"the state is a {kind.__name__}, not a {type(state).__name__}; save one of its type")
        self.replaced, self.is_plain = state, False

    def delete(self) -> None:
        """Delete the state."""
        self._state_type()
        self.replaced, self.is_plain = None, False

    def _state_type(self) -> type[Any]:
        handler = self.work.handler
        if handler.state is None:
            raise TypeError(f"{handler.name} has no state; give it a parameter annotated with the state's type")
        kind: type[Any] = handler.state.codec.type
        return kind

    def call(
        self,
        function: Callable[..., Any],
        *,
        idempotent: bool = False,
        time_limit_s: float | None = None,
        breaker: Breaker | None = None,
        rate: Rate | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Call an external system, at least once until the commit.

        The call is made once the message and the loaded state are durable.

        `function` takes nothing or the idempotency key, and is sync or async.  A retry calls it again with the same
        key: `idempotency_key` for a handler's first call, with the call's number appended for later ones; `idempotent`
        tells the explorer that repeats are harmless.  After `time_limit_s` seconds, or its handler's limit, the call is
        cancelled with an unknown outcome.  A sync function cannot be cancelled and holds the event loop.

        A `breaker` or a `rate` (see `outbox.guards`) may reschedule the message in place of the call: nothing of it is
        committed, no attempt counts, and calls that were made before are made again then, under their keys.  Those of
        one name are shared by all handlers.  Whoever catches that `Retry` goes on without the call.

        Raises:
            Retry: it is not durable yet, or a guard reschedules it; let it pass.
            TimeoutError: it took longer than `time_limit_s`; let it pass, and the attempt has failed.
            TypeError: the handler is a blocking one, which cannot await; the rate has no name; or `function` returned a
                generator, of which nothing has run.
            NotRegistrable: another breaker or rate of this name has other limits.
        """
        handler = self.work.handler
        if handler.blocking:
            raise TypeError(
                f"blocking handler {handler.name} cannot await ctx.call; call the function itself and give it "
                "ctx.idempotency_key, or make the handler async"
            )
        if rate is not None and not rate.name:
            raise TypeError(f'{rate} of a call needs a name, by which all attempts share it: Rate(..., name="...")')
        return self._call(function, time_limit_s, [guard for guard in (rate, breaker) if guard is not None])

    async def _call(
        self, function: Callable[..., Any], time_limit_s: float | None, guards: Sequence[Breaker | Rate]
    ) -> Any:
        self.call_count = number = self.call_count + 1  # of calls at once each keeps its own
        try:
            await self.durable()  # an external call must not depend on what a power loss could erase
        except (Refused, OutcomeUnknown) as error:
            raise Retry("the message is not durable yet", after_s=0) from error
        key = self.idempotency_key if number == 1 else f"{self.idempotency_key}-{number}"
        with ExitStack() as around:  # behind `durable`, because what is let through counts as made
            self._enter(around, guards)
            return await self._made(function, key, time_limit_s, number)

    def _enter(self, around: ExitStack, declared: Sequence[Breaker | Rate]) -> None:
        """Ask the guards of a call, those of its handler aside: they see what it raises anyway."""
        handler = self.work.handler
        if not declared or handler.find_guard is None:
            return
        asked = [handler.find_guard(guard) for guard in handler.guards]
        for guard in map(handler.find_guard, declared):
            if guard not in asked:
                around.enter_context(guard.around(self, earlier=self.passed.count(guard)))
                self.passed = (*self.passed, guard)

    async def _made(self, function: Callable[..., Any], key: str, time_limit_s: float | None, number: int) -> Any:
        from asyncio import timeout  # here, because a command's help needs no event loop

        within = timeout(time_limit_s)
        try:
            async with within:
                result = function(key) if _wants_key(function) else function()
                result = await result if isinstance(result, Awaitable) else result
        except TimeoutError as error:
            if not within.expired():
                raise
            text = f"call {number} of {self.work.handler.name} had not ended after its {time_limit_s:g} s"
            raise TimeoutError(text) from error
        check_result(f"call {number} of {self.work.handler.name}", result)
        return result

    # Capture

    def _hops(self, due_ms: int) -> int:
        """How many handlers an output's chain has passed; 0 for an output due a second or more later.

        Raises:
            PoisonMessage: there are too many of them, or of outputs.
        """
        cause, hops_max = self.message, self.outlet.hops_max
        if len(self.outputs) >= OUTPUT_COUNT_MAX:
            text = f"message {cause.identity} has {OUTPUT_COUNT_MAX:,} outputs, the limit of one handling; send fewer, "
            raise PoisonMessage("failed", f"{text}or a message to this queue whose handling sends the rest")
        if due_ms - self.now_ms >= CHAIN_GAP_MS:
            return 0
        if cause.hops >= hops_max:
            text = f"message {cause.identity} has passed {cause.hops} handlers without a pause of a second, the limit "
            cure = "end the cycle of messages, send after_s=1 or later, or raise hops_max"
            raise PoisonMessage("cycle", f"{text}is App(hops_max={hops_max}); {cure}")
        return cause.hops + 1

    def _due_ms(self, after_s: float | None, at: datetime | float | None) -> int:
        if after_s is not None and at is not None:
            raise TypeError("give after_s= or at=, not both")
        due_s = at if after_s is None else self.now_ms / 1_000 + after_s
        return 0 if due_s is None else to_ms(due_s)


def seal(context: Context, why: str) -> None:
    """Seal a context: from here on every use raises HandlingEnded.

    Its fields are replaced, not its methods, so that an open context has no extra cost.  Another thread may still
    capture an output at this moment; an attempt that was cut off commits nothing of it.
    """
    ended: Any = Ended(why)
    context.outlet = context.work = context.message = context.now_ms = context.durable = ended


def _wants_key(function: Callable[..., Any]) -> bool:
    """Whether a function has a required parameter."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some built-in functions have no signature
        return False
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in plain and p.default is inspect.Parameter.empty for p in parameters)
