"""`explore`: every interleaving of an application's handlers with crashes and duplicates, and a report.

What it does, in this order; it stops at the first step that finds anything, and nothing is found in a later step that
an earlier one shows more simply:

1. every handling alone (`rehearsal`): run twice, does it do the same?  Does its message ever end?
2. one worker, no faults: what must hold, dead letters, messages that wait for ever; and every order
3. one worker, with the duplicates and faults; each choice of which message is there more than once
4. all workers

3 and 4 run the production runtime over models of the stores, breadth first, so that what is found has a shortest way.
Where time does not suffice for all of it, the report says that it is not exhausted, and what is left of the time goes
into runs that are drawn by `seed`.  An application that schedules itself without an end is explored over its first
pauses, and the scope in the report says so.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any

from outbox.app import App
from outbox.errors import UnknownType
from outbox.http import Unfit
from outbox.lineage import Key
from outbox.name_checks import check_sent, check_taken, kept_states, known_messages, known_state_id
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import short
from outbox.verify.explorer.programs import ClientRequest, work_of
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Limits, sample, search
from outbox.verify.explorer.search import Report as Searched
from outbox.verify.findings.rehearsal import PAUSES_FOLLOWED, Rehearsal, order_that_shows
from outbox.verify.findings.report import Anomaly, Part, Report, shortened
from outbox.verify.promises.view import Invariant, View

SCOPES = ("engine", "partition", "item")
ALLOWED = ("order", "dead-letter")
WORKER_COUNT_MAX = 8
DUPLICATE_COUNT_MAX = 8
MESSAGE_COUNT_MAX = 100


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
        value = numbers[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}={value!r}: a number from {least} to {most}")
        if not least <= value <= most:
            raise ValueError(f"{name}={value}: {least} to {most} can be explored; most bugs show with one or two")
    _check_rest(numbers, **rest)


_TIMES = ("crashes", "lost", "refused", "delayed", "expired", "stale", "jumps", "timeouts", "rescheduled")
_LIMITS = {
    "workers": (1, WORKER_COUNT_MAX),
    "duplicates": (0, DUPLICATE_COUNT_MAX),
    **dict.fromkeys(_TIMES, (0, 15)),
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


SECONDS = 60.0
DRAWN_SHARE = 0.2
"""How much of the time is kept for drawn runs, where everything cannot be visited."""

RUN_COUNT_MAX = 1_000_000
STATE_COUNT_MAX = 20_000_000
"""How many worlds one search visits; its memory, 3 GiB, lasts for some twelve million."""
TOO_OLD = "too-old"


def explore(
    app: App,
    messages: Sequence[tuple[str, Any, str]] = (),
    *,
    requests: Sequence[tuple[str, str, Any, str]] = (),
    given: Sequence[tuple[Key, Any]] = (),
    workers: int = 2,
    duplicates: int = 1,
    crashes: int = 1,
    lost: int = 0,
    refused: int = 0,
    delayed: int = 0,
    expired: int = 0,
    stale: int = 0,
    jumps: int = 0,
    timeouts: int = 0,
    rescheduled: int = 0,
    scope: str = "engine",
    invariant: Invariant | None = None,
    at_end: Invariant | None = None,
    allow: Collection[str] = (),
    seconds: float = SECONDS,
    seed: int = 0,
) -> Report:
    """Run an application's handlers in every order, with every interleaving of workers, crashes and duplicates.

    `messages` are (queue, message, id), `requests` (method, path, body, idempotency key) over HTTP, and `given` (key,
    state).  `duplicates` is how many further copies there are, of any of the messages; a request is sent so many more
    times at once.  Beside `workers` as many processes answer requests, and over a store and a bus a sweeper finishes.
    The others count faults in one run: a worker dies (`crashes`), a call takes effect and its reply is lost (`lost`),
    is throttled (`refused`) or lands at any later time (`delayed`), a lock runs out under a worker that goes on
    (`expired`), a read answers from the past (`stale`), time leaps to where something expires (`jumps`), a handler's
    own timer beats its call (`timeouts`).  Breakers and rates of handlers and calls reschedule a message `rescheduled`
    times, whenever that may be; those of requests let all pass.

    `invariant` is given a world, with `states(T)`, `state(T, key)` and `in_flight(T)`, after every commit and at the
    beginning; it returns whether all is well, or raises an AssertionError.  `at_end` is given those worlds alone in
    which nothing is under way and nothing more can happen.  `allow` names what is no finding: "order", "dead-letter".
    `seconds` of CPU are spent at most.

    Raises:
        ValueError, TypeError, UnknownType: what is asked for cannot be explored; the text says what can.
    """
    numbers = {
        "workers": workers, "duplicates": duplicates, "crashes": crashes, "lost": lost, "refused": refused,
        "delayed": delayed, "expired": expired, "stale": stale, "jumps": jumps, "timeouts": timeouts,
        "rescheduled": rescheduled,
    }  # fmt: skip
    rest: dict[str, Any] = {"allow": allow, "seconds": seconds, "seed": seed}
    check_arguments(app, messages, requests, given, numbers, scope=scope, invariant=invariant, at_end=at_end, **rest)
    whole = Scenario(
        app, messages=tuple(map(tuple, messages)), given=tuple(map(tuple, given)),
        workers=workers if messages or app.handlers else 0, reschedules=rescheduled,
        budgets=Budgets(crashes, lost, delayed, refused, expired, stale, jumps, timeouts),
        requests=tuple(map(request_of, requests)), fronts=workers, sweepers=1 if requests and scope != "engine" else 0,
        scope=scope, invariant=invariant, at_end=at_end, allow=frozenset(allow) & {"dead-letter"},
    )  # fmt: skip
    return Exploration(whole, workers=workers, duplicates=duplicates, **rest).run()


class Exploration:
    """One exploration, under way."""

    def __init__(
        self, whole: Scenario, *, workers: int, duplicates: int, allow: Collection[str], seconds: float, seed: int
    ) -> None:
        self._workers = workers
        self._duplicates = duplicates
        self._allow = allow
        self._seconds = seconds
        self._seed = seed
        self._whole = replace(
            whole,
            invariant=None if whole.invariant is None else self._checked_safely(whole.invariant),
            at_end=None if whole.at_end is None else self._checked_safely(whole.at_end),
        )
        self._rehearsal = Rehearsal(self._whole)
        self._began_s = time.process_time()
        self._found: list[Anomaly] = []
        self._seen = known_messages(whole.app)
        """The message types that may be asked for: the handlers' types, and those sent."""
        self._in_flight: set[type[Any]] = set()
        self._parts: list[Part] = []
        self._left_out = ""
        self._horizon = ""

    def run(self) -> Report:
        """Take the steps, up to the first that finds anything."""
        for step in (self._rehearse, self._calm, self._lone, self._all):
            step()
            if self._found:
                break
        if self._left_out and not self._found:
            self._draw()
        if not self._found:
            check_sent(self._whole.app, self._in_flight - self._seen)
        return Report(
            scope=self._describe(),
            exhausted=not self._left_out and not self._found,
            anomalies=tuple(self._found),
            parts=tuple(self._parts),
            stopped=self._left_out,
            cpu_s=time.process_time() - self._began_s,
        )

    def _describe(self) -> str:
        """All that is explored, in a line."""
        whole = self._whole
        parts = [
            f"{whole.app.name}, {whole.scope} scope",
            _count(self._workers, "worker"),
            *([_count(len(whole.messages), "message")] if whole.messages else []),
            *([_count(len(whole.requests), "request")] if whole.requests else []),
            _count(self._duplicates, "duplicate"),
            *([f"rescheduled {whole.reschedules} times"] if whole.reschedules else []),
            whole.budgets.describe(),
            *([self._horizon] if self._horizon else []),
        ]
        return ", ".join(parts)

    # The steps

    def _rehearse(self) -> None:
        found = self._rehearsal.run()
        if found is not None:
            self._found.append(found)
        if self._rehearsal.endless:
            self._whole = replace(self._whole, pauses_max=PAUSES_FOLLOWED)
            self._horizon = (
                f"{self._rehearsal.endless} schedules itself without an end: followed over {PAUSES_FOLLOWED} pauses"
            )

    def _calm(self) -> None:
        calm = replace(_lone(self._whole), budgets=Budgets(), reschedules=0)
        self._search([calm], live=True)
        if "order" not in self._allow and not self._found:
            anomaly, part, stopped = order_that_shows(calm, cpu_s=self._time_left_s() / 4)
            self._parts.append(part)
            if anomaly is not None:
                self._found.append(anomaly)
            self._left_out = self._left_out or stopped

    def _lone(self) -> None:
        if self._workers > 1:
            self._search([_lone(each) for each in self._choices()], live=True)

    def _all(self) -> None:
        self._search(self._choices(), live=self._workers == 1)

    def _choices(self) -> list[Scenario]:
        """A scenario for each choice of messages that are there more than once, the least copies first."""
        message_count = len(self._whole.messages)
        count = message_count + len(self._whole.requests)
        choices = [
            [1 + chosen.count(index) for index in range(count)]
            for copies in range(self._duplicates + 1)
            for chosen in combinations_with_replacement(range(count), copies)
        ]
        return [
            replace(self._whole, copies=times[:message_count], asked_times=times[message_count:]) for times in choices
        ]

    def _search(self, scenarios: list[Scenario], *, live: bool) -> None:
        for number, scenario in enumerate(scenarios):
            share_s = self._time_left_s() / (len(scenarios) - number)
            if share_s <= 0:
                self._left_out = self._left_out or self._out_of_time()
                return
            report = search(scenario, limits=Limits(states=STATE_COUNT_MAX, cpu_s=share_s), live=live)
            self._note(scenario, report)
            if not self._found and not scenario.budgets.jump:
                self._look_for_what_grows_old(scenario, report)
            stopped = self._out_of_time() if "CPU seconds" in report.stopped else report.stopped
            self._left_out = self._left_out or stopped
            if self._found:
                return

    def _look_for_what_grows_old(self, scenario: Scenario, report: Searched) -> None:
        """Find a message that is abandoned until it is too old: an end that was not meant."""
        ends = [outcome for outcome in report.outcomes if isinstance(outcome, tuple)]
        old = sorted({identity for *_, dead in ends for identity, reason in dead if reason == TOO_OLD})
        if not old:
            return
        limits = Limits(cpu_s=max(self._time_left_s(), 1.0))
        again = search(replace(scenario, invariant=lambda world: not world._ledger.fenced), limits=limits)
        way, steps = next(((found.trace.text, found.steps) for found in again.anomalies), ("", 0))
        text = f"{short(old[0])} is rescheduled for all its retention of {scenario.app.retention}, and quarantined"
        self._found.append(Anomaly("Ends", text, shortened(way), steps))

    def _draw(self) -> None:
        """Spend the rest of the time on runs that a seed draws."""
        for scenario in self._choices()[::-1]:  # the most copies first
            left_s = self._seconds - (time.process_time() - self._began_s)
            self._note(scenario, sample(scenario, seed=self._seed, runs=RUN_COUNT_MAX, cpu_s=left_s / 2))
            if self._found or left_s <= 0:
                return

    def _note(self, scenario: Scenario, report: Searched) -> None:
        self._parts.append(Part(report.scope, report.states, report.transitions, report.finals, report.runs))
        self._found += [Anomaly.of(scenario, found, self._rehearsal.raised) for found in report.anomalies]

    def _checked_safely(self, invariant: Invariant) -> Invariant:
        """An invariant that cannot be computed in a world does not hold there, and the way there is shown.

        One that asks for a type which the application does not have holds in every world, and so says nothing.
        """

        def asked(world: View) -> object:
            try:
                return invariant(world)
            except (AssertionError, UnknownType):
                raise
            except Exception as error:
                raise AssertionError(f"it raises {type(error).__name__}: {error}") from error
            finally:
                self._in_flight |= world.asked
                self._seen |= world.seen

        return asked

    def _out_of_time(self) -> str:
        return f"the limit of {self._seconds:g} CPU seconds is reached"

    def _time_left_s(self) -> float:
        return self._seconds * (1 - DRAWN_SHARE) - (time.process_time() - self._began_s)


def _lone(scenario: Scenario) -> Scenario:
    """The same with one process of each kind."""
    return replace(scenario, workers=min(1, scenario.workers), fronts=1)
