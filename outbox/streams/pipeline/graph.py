"""A pipeline as its author declares it: a source, operators, sinks; it is checked where it is built.

    index = Pipeline("index", source=pages)

    @index.flat_map(source=pages, emits=Word)
    def words(page: Page) -> Iterator[Word]: ...

    @index.reduce(words, key=lambda word: word.text, state=Postings, emits=Change)
    def update(postings: Postings, word: Word, emit: Emit[Change]) -> None: ...

    index.sink(update, changes)

The source is one row: what comes out at a position is decided by the row up to it, for every process alike.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import replace
from typing import Any

from outbox.codec import StateCodec, Upcast
from outbox.errors import NotRegistrable
from outbox.generators import yields
from outbox.runtime.failures.error_text import failure_text
from outbox.streams.callables import check_call, is_async
from outbox.streams.cells import Position
from outbox.streams.log import LogReader, OrderedLog, check_name
from outbox.streams.log_places import Place, place_of
from outbox.streams.pipeline.barrier import Barrier
from outbox.streams.pipeline.event_time import late_of
from outbox.streams.pipeline.operators import Operator, emitted_kind
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.release import Release, fitting, in_order
from outbox.streams.pipeline.running import RunningPipeline, run, run_until_idle
from outbox.streams.pipeline.state_fields import state_codec
from outbox.streams.plan import REFUSED, RefusedEntry
from outbox.streams.values import name_of

SPAN_S_MAX = 10 * 366 * 86_400.0
Declare = Callable[[Callable[..., Any]], Operator]


class Pipeline:
    """Pure operators over one ordered row, whose outputs go to logs in the order of their causes.

    `source` is an `OrderedLog` of one writer, or one `.reader(n)` of it.  `version` is that of the graph and its code:
    a change of either needs the next one.  An operator that raises `PoisonMessage` leaves out what it was given, and
    `refused`, a log of `RefusedEntry`, gets the entry of the source that this came from; other records of that entry
    go on.  Where it is the function of a window, it gets the window's values.

    Raises:
        NotRegistrable: the source or `refused` is no such log.
    """

    def __init__(
        self,
        name: str,
        *,
        source: OrderedLog[Any] | LogReader[Any],
        version: int = 1,
        refused: OrderedLog[RefusedEntry] | None = None,
    ) -> None:
        self.name = check_name("pipeline", name)
        self.version = self._counted("version", version)
        self.source = self._reader_of(source)
        self._operators: dict[str, Operator] = {}
        self._sinks: dict[str, tuple[Operator, OrderedLog[Any]]] = {}
        self._exactly_once: set[str] = set()
        self._refuses = refused is not None
        if refused is not None:
            self._send(Operator(REFUSED, "refused", RefusedEntry, None), refused, "refused=", RefusedEntry)
        self._moved: Callable[[Place], Place] | None = None
        self._barrier: Callable[..., Barrier] = Barrier

    def _wrong(self, text: str) -> str:
        return f"pipeline {self.name}: {text}"

    def _counted(self, what: str, version: Any) -> int:
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise NotRegistrable(self._wrong(f"{what}={version!r}: a whole number, 1 or more"))
        return version

    def _reader_of(self, source: Any) -> LogReader[Any]:
        reader = source.reader(0) if isinstance(source, OrderedLog) and source.readers == 1 else source
        if not isinstance(reader, LogReader):
            raise NotRegistrable(
                self._wrong(
                    "source= is one row; give an OrderedLog of one writer and one reader, or one of its .reader(n)"
                )
            )
        if reader.log.writers > 1:
            raise NotRegistrable(
                self._wrong(
                    f"log {reader.log.name} has {reader.log.writers} writers, whose entries have no order among them; "
                    "let a Processor read it and emit to a log of one writer, and give that"
                )
            )
        return reader

    # Operators

    def map(self, upstream: Any = None, *, source: Any = None, emits: Any = None) -> Declare:
        """An operator from each value to one: `(value) -> value`; a `Skip` is nothing."""
        return self._operator("map", upstream, source, emits, "value")

    def filter(self, upstream: Any = None, *, source: Any = None) -> Declare:
        """An operator that lets values through: `(value) -> bool`."""
        return self._operator("filter", upstream, source, None, "value")

    def flat_map(self, upstream: Any = None, *, source: Any = None, emits: Any = None) -> Declare:
        """An operator from each value to any number: `(value) -> values`, in their order."""
        return self._operator("flat_map", upstream, source, emits, "value")

    def reduce(
        self,
        upstream: Any = None,
        *,
        key: Callable[[Any], Any],
        state: type,
        source: Any = None,
        emits: Any = None,
        state_version: int = 1,
        upcasts: Mapping[int, Upcast] | None = None,
    ) -> Declare:
        """An operator over a state for each key: `(state, value, emit) -> None`, in the order of the source.

        It changes the state in place; `key` is a function of the value to a `str`, an `int` or a `UUID`.
        `state_version` counts the changes of the state's schema, from 1, and `upcasts` lead from earlier ones.

        Raises:
            NotRegistrable: no such state can begin, or be stored.
        """
        self._check_call("key=", key, "value")
        if not isinstance(state, type):
            raise NotRegistrable(self._wrong(f"state={state!r}: give the class"))
        codec = StateCodec(state_codec(state), self._counted("state_version", state_version), dict(upcasts or {}))
        try:
            codec.decode(codec.encode(codec.fresh()), codec.version)
        except Exception as error:
            raise NotRegistrable(
                self._wrong(
                    f"{codec.codec.name}() must make a key's first state, which is stored and read: "
                    f"{failure_text(error)}; give every field a default that can be stored"
                )
            ) from error
        return self._operator("reduce", upstream, source, emits, "state", "value", "emit", key=key, codec=codec)

    def window(
        self,
        upstream: Any = None,
        *,
        key: Callable[[Any], Any],
        size_s: float,
        slide_s: float | None = None,
        time: Callable[[Any], int] | None = None,
        late: OrderedLog[Any] | None = None,
        source: Any = None,
        emits: Any = None,
    ) -> Declare:
        """An operator over the values of each key in a window of time: `(window, values) -> values`.

        A window is `size_s` seconds long and begins every `slide_s` (default: where the last ends); it has a `key`, a
        `start_ms` and an `end_ms`.  Time is the log's: a window closes at the first entry behind its end, so the last
        one needs an entry behind it.  What the operator before emits is declared there, because it is stored.

        With `time`, a function of a value to milliseconds since 1970, it is the greatest so far, over all keys.  A
        value all of whose windows have closed by then goes to `late`, a log of such values.

        Raises:
            NotRegistrable: the spans cannot be, the values' type is not known, or `late` is no log for them.
        """
        self._check_call("key=", key, "value")
        if (time is None) != (late is None):
            raise NotRegistrable(
                self._wrong(
                    "time= and late= go together: a window by a time of its values puts late ones into a log, one by "
                    "the log's time has none; give time=function and late=log, or neither"
                )
            )
        before = self._upstream("window", upstream, source)
        size_ms, slide_ms = self._ms("size_s", size_s), self._ms("slide_s", size_s if slide_s is None else slide_s)
        if slide_ms > size_ms:
            raise NotRegistrable(
                self._wrong(f"slide_s={slide_s} is over size_s={size_s}: what is between windows would be lost")
            )
        kind = emitted_kind(before, self.source.log.values.kind)
        if kind is None:
            raise NotRegistrable(
                self._wrong(f"a window stores what {before.name if before else ''} emits; declare emits= there")
            )
        span = (size_ms, slide_ms, kind)
        declare = self._operator("window", upstream, source, emits, "window", "values", key=key, window=span)
        if time is None or late is None:
            return declare
        self._check_call("time=", time, "value")
        return lambda function: self._timed(declare(function), time, late)

    def _timed(self, window: Operator, time: Callable[[Any], int], late: OrderedLog[Any]) -> Operator:
        """A window behind the operator that tells its time; another operator has its late values."""
        name, span = window.name, window.window
        timed = Operator(f"{name}~time", "time", time, window.upstream, window=span, refuses=self._refuses)
        aside = Operator(f"{name}~late", "late", late_of, timed)
        window = replace(window, upstream=timed)
        del self._operators[name]
        self._operators |= {each.name: each for each in (timed, window, aside)}
        self._send(aside, late, "late=", span[2] if span else None)
        return window

    def _ms(self, what: str, seconds: Any) -> int:
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0.001 <= seconds <= SPAN_S_MAX:
            raise NotRegistrable(self._wrong(f"{what}={seconds!r}: seconds, 0.001 to {SPAN_S_MAX:g}"))
        return round(seconds * 1_000)

    def _operator(self, kind: str, upstream: Any, source: Any, emits: Any, *given: str, **options: Any) -> Declare:
        if not (
            emits is None
            or isinstance(emits, type)
            or type(emits).__module__ in ("types", "typing", "typing_extensions")
        ):
            raise NotRegistrable(self._wrong(f"emits={emits!r} is no type; give a class, or a union of classes"))
        before = self._upstream(kind, upstream, source)

        def declare(function: Callable[..., Any]) -> Operator:
            name = getattr(function, "__name__", "")
            self._check_function(kind, name, function, given)
            made = Operator(name, kind, function, before, emits, refuses=self._refuses, **options)
            self._operators[name] = made
            return made

        return declare

    def _upstream(self, kind: str, upstream: Any, source: Any) -> Operator | None:
        if (upstream is None) == (source is None):
            raise NotRegistrable(self._wrong(f"a {kind} takes one operator, or source= the pipeline's source"))
        if source is not None:
            given = self._reader_of(source)
            if (given.log, given.reader) != (self.source.log, self.source.reader):
                raise NotRegistrable(
                    self._wrong(f"its source is {self.source.log.name}, not {given.log.name}; give source= that")
                )
            return None
        if not isinstance(upstream, Operator) or self._operators.get(upstream.name) is not upstream:
            raise NotRegistrable(
                self._wrong(
                    f"a {kind} of {upstream!r}, which is none of its operators; give what declared it, or source="
                )
            )
        return upstream

    def _check_function(self, kind: str, name: str, function: Any, given: tuple[str, ...]) -> None:
        module = sys.modules.get(getattr(function, "__module__", ""))
        if not inspect.isfunction(function) or "<" in function.__qualname__ or module is None:
            raise NotRegistrable(
                self._wrong(
                    f"{name or function!r} is no function of a module, so no other process can find it, and what it "
                    "closes over may change; define it at the top of a module"
                )
            )
        if name in self._operators:
            raise NotRegistrable(self._wrong(f"two operators {name!r}; give one another name"))
        self._check_call(name, function, *given, may_yield=kind in ("flat_map", "window"))

    def _check_call(self, what: str, function: Any, *given: str, may_yield: bool = False) -> None:
        check_call(f"pipeline {self.name}: {what}", function, *given)
        if is_async(function) or (yields(function) and not may_yield):
            raise NotRegistrable(
                self._wrong(
                    f"{what} waits or yields; an operator is pure: let a Processor or a handler call the outside"
                )
            )

    def sink(self, operator: Operator, log: OrderedLog[Any], *, exactly_once: bool = False) -> None:
        """Send an operator's records to a log, which is this pipeline's alone; others read on from there.

        With `exactly_once` a release by which outputs may come twice, or never, is refused.

        Raises:
            NotRegistrable: the log has several rows, is the source, or is a sink already.
        """
        if not isinstance(operator, Operator) or self._operators.get(operator.name) is not operator:
            raise NotRegistrable(
                self._wrong(
                    f"a sink of {operator!r}, which is none of its operators; give what its declaration has returned"
                )
            )
        self._send(operator, log, "a sink", None)
        if exactly_once:
            self._exactly_once.add(log.name)

    def _send(self, operator: Operator, log: Any, what: str, kind: Any) -> None:
        if not isinstance(log, OrderedLog) or log.writers > 1 or log.readers > 1:
            raise NotRegistrable(
                self._wrong(f"{what} is an OrderedLog of one writer and one reader; a Processor can read on from it")
            )
        if kind is not None and kind not in (log.values.kind, *typing.get_args(log.values.kind)):
            raise NotRegistrable(self._wrong(f"{what} gets values of {name_of(kind)}; give log {log.name} that type="))
        if log.name == self.source.log.name and log.place.store is self.source.log.place.store:
            raise NotRegistrable(self._wrong(f"log {log.name} is its source; give {what} a log of its own"))
        if log.name in self._sinks:
            raise NotRegistrable(self._wrong(f"two sinks into log {log.name}; give each a log of its own"))
        self._sinks[log.name] = operator, log

    # Running

    def plan(self, release: Release | None = None) -> PipelinePlan:
        """The plan that its replicas run, with a release (default: `in_order`).

        Raises:
            NotRegistrable: there is no sink, or an operator leads to none.
        """
        if all(operator.kind in ("refused", "late") for operator, _ in self._sinks.values()):
            raise NotRegistrable(
                self._wrong("it has no sink, so nothing would leave it; declare one: .sink(operator, log)")
            )
        needed: set[str] = set()
        for operator, _ in self._sinks.values():
            one: Operator | None = operator
            while one is not None and one.name not in needed:
                needed.add(one.name)
                one = one.upstream
        idle = [name for name in self._operators if name not in needed]
        if idle:
            raise NotRegistrable(self._wrong(f"what {', '.join(idle)} emits reaches no sink; give it one"))
        operators, sinks = tuple(self._operators.values()), dict(self._sinks)
        plan = PipelinePlan(
            self.name,
            self.version,
            self.source,
            operators,
            sinks,
            frozenset(self._exactly_once),
            release or in_order(),
            self._barrier,
        )
        return plan if self._moved is None else plan.on(lambda log: self.on(log.place))

    def on(self, place: Any) -> Place:
        """Wrap a place as `over` says."""
        return place_of(place) if self._moved is None else self._moved(place_of(place))

    def over(self, place: Callable[[Place], Place], barrier: Callable[..., Barrier] | None = None) -> Pipeline:
        """The same pipeline over what `place` makes of the places of its logs, register and checkpoints.

        Where it was over others before, those are made of these.
        """
        other = copy(self)
        other._moved = lambda given: self.on(place(given))
        other._barrier = barrier or self._barrier
        return other

    def run(
        self,
        place: Any,
        *,
        release: Release | None = None,
        checkpoint_s: float = 1.0,
        replicas: int = 1,
        workers: int = 0,
        imported: str | None = None,
    ) -> AbstractAsyncContextManager[RunningPipeline]:
        """Run replicas in this process until the context ends; `place` has the register and the checkpoints.

        Any number of processes may do so at once: they are replicas of each other.  `release` says when outputs leave,
        by default `release.in_order()`.

        With `workers`, the operators of each replica run in as many processes more, which have its states by their
        keys.  They import the pipeline as `imported`, `module:attribute`: a pipeline, or what makes one of a place, by
        itself or as its `pipeline`; without it, it is looked for at the top of its operators' modules.

        Raises:
            ReleaseRefused: the release does not fit.
        """
        return run(
            self.plan(release),
            self.on(place),
            checkpoint_s=checkpoint_s,
            replicas=replicas,
            workers=workers,
            imported=imported or (self._imported() if workers else ""),
        )

    def _imported(self) -> str:
        """The name by which it can be imported; empty without one."""
        modules = {operator.function.__module__ for operator in self._operators.values()} - {"__main__"}
        members = ((name, *each) for name in sorted(modules) for each in vars(sys.modules[name]).items())
        return next((f"{name}:{attribute}" for name, attribute, value in members if value is self), "")

    async def run_until_idle(self, place: Any, *, release: Release | None = None, seconds: float = 50.0) -> Position:
        """Take turns until there is nothing to do or `seconds` have passed; the position up to which all has left.

        For a timer trigger.  Overlapping calls, in any process, are replicas of each other.

        Raises:
            Refused, OutcomeUnknown: a store failed up to the end.
            ReleaseRefused: the release does not fit.
        """
        return await run_until_idle(self.plan(release), self.on(place), seconds=seconds)

    def describe(self) -> str:
        """The graph, a line for each operator with its class and for each sink, and the releases that would do."""
        lines = [f"{self.name}: source {self.source.log.name}"]
        lines += [
            f"  {one.name}: {one.kind} of {one.upstream.name if one.upstream else 'the source'}, {one.determinism}"
            for one in self._operators.values()
        ]
        for name, (operator, _) in self._sinks.items():
            lines.append(f"  log {name}: sink of {operator.name}{', exactly once' * (name in self._exactly_once)}")
        return "\n".join([*lines, f"releases: {', '.join(fitting(self._exactly_once))}"])
