"""The arguments of `explore`, checked before anything runs; an error names its cure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outbox.app import App
from outbox.http import Unfit
from outbox.lineage import Key
from outbox.name_checks import check_taken, kept_states, known_state_id
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.requests import ClientRequest, work_of

SCOPES = ("engine", "partition", "item")
ALLOWED = ("order", "dead-letter")
WORKER_COUNT_MAX = 8
DUPLICATE_COUNT_MAX = 8
MESSAGE_COUNT_MAX = 100


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of `explore`."""

    app: App
    messages: tuple[tuple[str, Any, str], ...]
    given: tuple[tuple[Key, Any], ...]
    workers: int
    duplicates: int
    faults: Budgets
    scope: str
    allow: frozenset[str]
    seconds: float
    seed: int
    requests: tuple[ClientRequest, ...] = ()
    rescheduled: int = 0

    def describe(self) -> str:
        """All of it in a line."""
        parts = [
            f"{self.app.name}, {self.scope} scope",
            _count(self.workers, "worker"),
            *([_count(len(self.messages), "message")] if self.messages else []),
            *([_count(len(self.requests), "request")] if self.requests else []),
            _count(self.duplicates, "duplicate"),
            *([f"rescheduled {self.rescheduled} times"] if self.rescheduled else []),
            self.faults.describe(),
        ]
        return ", ".join(parts)


def check_arguments(
    app: Any, messages: Any, requests: Any, given: Any, numbers: Mapping[str, Any], **rest: Any
) -> None:
    """See that all of it can be explored.

    Raises:
        TypeError: an argument is of another kind.
        ValueError: it is of the kind, and cannot be explored.
    """
    if not isinstance(app, App):
        raise TypeError(f"explore(app, messages): the first is an App, not a {type(app).__name__}")
    _check_messages(app, messages, at_least=0 if requests else 1)
    _check_requests(app, requests)
    _check_given(app, given)
    for name, (least, most) in _LIMITS.items():
        _check_number(name, numbers[name], least, most)
    _check_rest(numbers, **rest)


_FAULT_LIMIT = (0, 15)
_TIMES = ("crashes", "lost", "refused", "delayed", "expired", "stale", "jumps", "timeouts", "rescheduled")
_LIMITS = {
    "workers": (1, WORKER_COUNT_MAX),
    "duplicates": (0, DUPLICATE_COUNT_MAX),
    **dict.fromkeys(_TIMES, _FAULT_LIMIT),
}


def _check_messages(app: App, messages: Any, *, at_least: int) -> None:
    form = 'each of messages is (queue, message, id), such as ("orders", Order(5), "o1")'
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, list | tuple):
        raise TypeError(f"messages is a {type(messages).__name__}, give a list; {form}")
    if not at_least <= len(messages) <= MESSAGE_COUNT_MAX:
        raise ValueError(f"{len(messages)} messages: give 1 to {MESSAGE_COUNT_MAX}, two or three tell most")
    read = {handler.source for handler in app.handlers}
    seen = set()
    for each in messages:
        if not (isinstance(each, tuple | list) and len(each) == 3):
            raise TypeError(f"{each!r}: {form}")
        queue, message, id = each
        if not isinstance(queue, str) or not isinstance(id, str) or not id:
            raise TypeError(f"{each!r}: {form}, queue and id as texts")
        app.destination(queue)
        if queue not in read and not app.topics.get(queue):
            raise ValueError(f"no handler of {app.name} reads {queue!r}; send to one of {', '.join(sorted(read))}")
        check_taken(app, queue, message)
        app.encode(message)
        if (queue, id) in seen:
            raise ValueError(f"two messages on {queue!r} have the id {id!r}; for a copy of one say duplicates=1")
        seen.add((queue, id))


def _check_requests(app: App, requests: Any) -> None:
    form = 'each of requests is (method, path, body, key), such as ("POST", "/orders", Order(5), "k1")'
    if not isinstance(requests, list | tuple):
        raise TypeError(f"requests is a {type(requests).__name__}, give a list; {form}")
    if len(requests) > MESSAGE_COUNT_MAX:
        raise ValueError(f"{len(requests)} requests: give up to {MESSAGE_COUNT_MAX}, two or three tell most")
    for each in requests:
        if not (isinstance(each, tuple | list) and len(each) == 4 and all(isinstance(each[i], str) for i in (0, 1, 3))):
            raise TypeError(f"{each!r}: {form}, all but the body as texts")
        request = request_of(each)
        try:
            work_of(app, request.message, 0)
        except LookupError as error:
            raise ValueError(f"{each!r}: {error.args[0]}") from error
        except Unfit as unfit:
            raise ValueError(f"{each!r}: {unfit}; {form}") from unfit
    if len({request_of(each).message for each in requests}) < len(requests):
        raise ValueError("two requests are the same; for one that is sent twice at once say duplicates=1")


def request_of(given: Any) -> ClientRequest:
    """A request as it was given: method, path, body, key."""
    method, path, content, key = given
    return ClientRequest(f"{method.upper()} {path}", key, content)


def _check_given(app: App, given: Any) -> None:
    form = 'each of given is (key, state), such as ("alice", Account(10))'
    if not isinstance(given, list | tuple):
        raise TypeError(f"given is a {type(given).__name__}, give a list; {form}")
    kinds = kept_states(app)
    seen = set()
    for each in given:
        if not (isinstance(each, tuple | list) and len(each) == 2):
            raise TypeError(f"{each!r}: {form}")
        key, state = each
        if type(state) not in kinds:
            names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
            raise TypeError(f"{each!r}: {form}; the states of {app.name} are of {names}")
        place = known_state_id(app, type(state), key, kinds)
        if place in seen:
            raise ValueError(f"given has two states of {type(state).__name__} under {key!r}; leave one out")
        seen.add(place)


def _check_number(name: str, value: Any, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}: a number from {least} to {most}")
    if not least <= value <= most:
        raise ValueError(f"{name}={value}: {least} to {most} can be explored; most bugs show with one or two")


def _check_rest(
    numbers: Mapping[str, Any], *, scope: Any, invariant: Any, at_end: Any, allow: Any, seconds: Any, seed: Any
) -> None:
    if scope not in SCOPES:
        raise ValueError(f"scope={scope!r}: {', '.join(map(repr, SCOPES))} can be explored")
    if numbers["stale"] and scope == "engine":
        raise ValueError('stale reads do not happen in engine scope; say scope="partition", or leave stale= out')
    for name, asked in (("invariant", invariant), ("at_end", at_end)):
        if asked is not None and not callable(asked):
            raise TypeError(f"{name}={asked!r}: a function of the world that returns whether all is well")
    if isinstance(allow, str) or set(allow) - set(ALLOWED):
        raise ValueError(f"allow={allow!r}: a set of {', '.join(map(repr, ALLOWED))}, such as {{'order'}}")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ValueError(f"seconds={seconds!r}: how much CPU time may be spent, more than 0")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed={seed!r}: a whole number; the same draws the same runs")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
