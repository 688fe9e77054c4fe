"""Requests to an application, whatever it runs on: a request is the verb, and there is one port for all.

An engine answers it, a store with a bus does, and so does a running host over its control endpoint; the command line
prints the answer.  A request names the type of its answer: `Peek` is a `Read[Peeked]`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, cast

import msgspec

BATCH_COUNT_MAX = 1_000
"""Messages in one send, and dead letters or messages in one page."""

KeyKind = Literal["text", "int", "uuid"]
Text = Annotated[str, msgspec.Meta(max_length=4_096)]


Id = Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]
"""An id, or the beginning of one."""
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""The sequence number of a message in its queue; 0: of none."""
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
"""The name of a queue or log."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


A = TypeVar("A")
Answer_co = TypeVar("Answer_co", covariant=True)


class Request(msgspec.Struct, Generic[Answer_co], frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A question or an order with one answer; each list in it has a limit."""


class Read(Request[Answer_co], frozen=True):
    """A question that changes nothing, so that it can be asked again after a lost answer."""


class Change(Request[Answer_co], frozen=True):
    """An order; after a lost answer it may have been carried out."""


class Lines(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A question that is answered by JSON lines, in pieces of any length."""


class Admin(Protocol):
    """The operations on an application's queues and states, without its code."""

    async def ask(self, asked: Request[A]) -> A:
        """The answer; on an engine it has passed the gate, and what it changes is durable.

        Raises:
            UnknownDestination: there is no such queue, topic or subscription.
            LookupError: what is named is not there.
            Refused: what is asked is not possible, or stands for several things; the text says what to do.
        """

    def stream(self, asked: Lines) -> AsyncIterator[bytes]:
        """Stream the lines of an answer; raise as `ask` does."""


Answers = Mapping[type[Request[Any]], Callable[[Any, Any], Awaitable[Any]]]
"""By request, what answers it: a function of the place that is asked and of the request."""
Streams = Mapping[type[Lines], Callable[[Any, Any], AsyncIterator[bytes]]]
"""The same of requests that are answered by lines."""


async def answered(answers: Answers, at: Any, asked: Request[A]) -> A:
    """The answer of a place to a request."""
    return cast(A, await answers[type(asked)](at, asked))


def answer_of(kind: type[Request[A]]) -> Any:
    """The type of a request's answer."""
    return cast(Any, kind).__orig_bases__[0].__args__[0]
