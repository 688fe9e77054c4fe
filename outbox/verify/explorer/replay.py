"""Traces as files, and running them again, step by step.

A file holds the scenario beside the steps, so that it stands for itself, and names the application as
module:attribute.  What a scenario holds that is code (an invariant, something in the runtime's place) is given anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import msgspec

from outbox.app import App
from outbox.lineage import Key
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import Finding
from outbox.verify.explorer.programs import ClientRequest
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Trace, TraceStep, Walk, missing_at, wrong_at

FORMAT = 1


class Written(msgspec.Struct):
    """A trace in its stored form."""

    format: int
    app: str
    promise: str
    text: str
    names: tuple[str, ...]
    steps: tuple[TraceStep, ...]
    messages: list[tuple[str, str, str, str]]
    """Queue, type, body and id."""
    given: list[tuple[str, str, str, str]]
    """Key and its kind, type and body."""
    budgets: dict[str, int]
    options: dict[str, Any]
    requests: list[tuple[str, str, str]] = []
    """Method and path, idempotency key, body."""


_OPTIONS = (
    "workers", "copies", "scope", "batch", "sweepers", "symmetric", "ample", "warm", "lingers", "ledger", "mixed",
    "tells_current", "apart", "asked_times", "fronts", "front_batch", "pauses_max",
)  # fmt: skip
_KEYS: dict[str, Any] = {"str": str, "int": int, "UUID": UUID}


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of replaying a trace: its possible steps, the finding at their end, and any early stop."""

    trace: Trace
    finding: Finding | None
    stopped: str = ""

    @property
    def text(self) -> str:
        """The whole as text."""
        lines = [self.trace.text, self.stopped]
        if self.finding is not None:
            lines.append(f"{self.finding.promise}: {self.finding.text}")
        elif not self.stopped:
            lines.append("every step could be taken, and no promise is broken any more")
        return "\n".join(line for line in lines if line)


def write(scenario: Scenario, finding: Finding, trace: Trace, *, app: str = "") -> bytes:
    """A trace as JSON; `app` is where the application is found, as module:attribute."""
    messages = []
    for queue, message, id in scenario.messages:
        body, wire_type = scenario.app.encode(message)
        messages.append((queue, wire_type, body.decode(), id))
    given = []
    for key, state in scenario.given:
        codec = scenario.app.state_codec(type(state))
        given.append((str(key), type(key).__name__, codec.name, codec.codec.encode(state).decode()))
    options: dict[str, Any] = {name: getattr(scenario, name) for name in _OPTIONS}
    options["allow"] = sorted(scenario.allow)
    requests = [(each.line, each.key, each.message.body.decode()) for each in scenario.requests]
    written = Written(
        FORMAT, app, finding.promise, finding.text, trace.names, trace.steps, messages, given,
        asdict(scenario.budgets), options, requests,
    )  # fmt: skip
    return msgspec.json.format(msgspec.json.encode(written), indent=1)


def read(data: bytes) -> Written:
    """A trace from JSON.

    Raises:
        ValueError: it is none.
    """
    try:
        written = msgspec.json.decode(data, type=Written)
    except msgspec.MsgspecError as error:
        raise ValueError(f"this is not a trace: {error}") from error
    if written.format != FORMAT:
        raise ValueError(f"this trace has format {written.format}, this version reads {FORMAT}; record it again")
    return written


def scenario_of(written: Written, app: App) -> Scenario:
    """The scenario of a trace, over an application that has its types."""
    codecs = {codec.name: codec for codec in app.codecs()}
    states = app.states()
    messages = [(queue, codecs[kind].decode(body.encode()), id) for queue, kind, body, id in written.messages]
    given: list[tuple[Key, Any]] = [
        (_KEYS[kind](key), states[name].codec.decode(body.encode())) for key, kind, name, body in written.given
    ]
    known = {name: written.options[name] for name in _OPTIONS if name in written.options}
    requests = [ClientRequest(line, key, msgspec.Raw(body.encode())) for line, key, body in written.requests]
    allow = frozenset(written.options["allow"])
    return Scenario(app, messages, given, budgets=Budgets(**written.budgets), allow=allow, requests=requests, **known)


def replay(scenario: Scenario, steps: Sequence[TraceStep]) -> Replayed:
    """Run a trace again, each step as recorded, up to the first that cannot be taken."""
    walk = Walk(scenario.kernel())
    for number, wanted in enumerate(steps, start=1):
        options = walk.options()
        found = next((option for option in options if option[0] == wanted), None)
        if found is None:
            can = "; ".join(f"{seen.who or '~'} {seen.describe()}" for seen, _ in options[:8]) or "nothing"
            return Replayed(
                walk.trace(), None, f"step {number} ({wanted.describe()}) cannot be taken here; what can: {can}"
            )
        walk.take(*found)
    return Replayed(walk.trace(), wrong_at(walk) or missing_at(walk))
