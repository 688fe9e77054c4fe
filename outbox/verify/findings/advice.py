"""What findings mean to the author of the handlers: what is wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """A kind of finding, explained: what is wrong, and the cure."""

    title: str
    cure: str


_NOT_DETERMINISTIC = Advice(
    "a handler that is not deterministic",
    "A handler is run again after crashes and lost races, and must give the same result. Use ctx.now() for the "
    "time, ctx.random() and ctx.uuid() for chance, await ctx.call(...) for what others answer, and keep in the state "
    "what it has to remember.",
)
_NEVER_ENDS = Advice(
    "a message that never ends",
    "Let what it waits for arrive in what is explored, raise Reject when enough is enough, or end the circle of "
    "messages by a count that they carry.",
)

ADVICE: dict[str, Advice] = {
    "OneCall": Advice(
        "a side effect happens twice",
        "A call is at least once until its handling commits. Hand its key on, `await ctx.call(lambda key: ...)`, to a "
        "side that knows it again, and say idempotent=True; or send a message to a handler that does nothing else.",
    ),
    "StaysInside": Advice(
        "an effect outside ctx",
        "What a handler opens by itself happens again with every attempt, and is not taken back by any. Use "
        "await ctx.call(...) for other systems, ctx.write_blob(...) for files, ctx.send(...) for the rest.",
    ),
    "Deterministic": _NOT_DETERMINISTIC,
    "Serializable": _NOT_DETERMINISTIC,
    "ConsistentOutput": _NOT_DETERMINISTIC,
    "Order": Advice(
        "the order of messages shows",
        'Let the handler give the same whatever comes first; or declare the queue per_key, app.queue(name, "per_key"); '
        'or, where every order is right, say allow={"order"}.',
    ),
    "Invariant": Advice(
        "the invariant is broken",
        "It has to hold after every commit, not only at the end: change in one handling what belongs together, or "
        "count what is on its way by world.in_flight(...).",
    ),
    "NoDeadLetter": Advice(
        "a dead letter",
        'Mend what the reason says; or, where messages may be refused, say allow={"dead-letter"}.',
    ),
    "Ends": _NEVER_ENDS,
    "Progress": _NEVER_ENDS,
    "EveryMessageEnds": _NEVER_ENDS,
}
"""By the promise that is broken."""

OURS = Advice(
    "a promise of outbox itself is broken",
    "No handler should be able to do this, unless it decides by something other than its message, its state and ctx. "
    "If yours does not, please report it with the trace.",
)


def advice_on(promise: str) -> Advice:
    """What a finding means."""
    return ADVICE.get(promise, OURS)
