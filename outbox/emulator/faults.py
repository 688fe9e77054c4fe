"""Faults on demand, shared by the emulators, and the endpoint that installs them: which request goes wrong, and how.

A rule says what it matches and what then happens; a registry holds rules and answers, at every point where something
could go wrong, with the first rule that does.  The registry only decides and counts: what a kind means on the wire is
the business of the emulator that asks, and it asks only for kinds that it can do at that point.

A rule counts its matches from 0: the first `after` of them pass, each later one fires by chance (`probability`, drawn
from the rule's own `seed`, so that the same requests in the same order fail alike), at most `count` times.

The control endpoint of an HTTP emulator is on the emulator's port: faults to install, and use to read.

    GET, POST, DELETE  /_outbox/faults          the rules and what fired; one rule or an array; all, or ?id=N
    GET, DELETE        /_outbox/usage           requests by operation, and what they came to; count from zero

No SDK uses such a path.  Every request names the token, compared in constant time; the server checks the Host header.
"""

from __future__ import annotations

import base64
import hmac
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import Any, Generic, Literal, TypeVar, get_args

import msgspec

from outbox.emulator.dialect import Answer, Refusal
from outbox.errors import Refused

Kind = Literal[
    # of requests
    "lost-reply",  # it took effect, its answer never comes
    "refused",  # it is refused for good; nothing happened
    "throttled",  # it is refused for `retry_after_s`; nothing happened
    "status",  # it is answered with `status` and `substatus`; nothing happened
    "delay",  # it waits `delay_s` before anything happens
    "stale-read",  # it is answered from the past, as far as its session allows
    "reset",  # its connection breaks before anything happened
    # of deliveries
    "lock-expiry",  # the lock runs out at once
    "lost-disposition",  # the settlement takes effect, its answer never comes
    "wrong-disposition",  # the settlement is answered with another outcome than it had
    "duplicate",  # the message is delivered a second time
    "detach",  # the link is closed by the server
    "reorder",  # the message is delivered after one that came later
    "pause",  # the client hears nothing for `delay_s`
]

KINDS: frozenset[str] = frozenset(get_args(Kind))
RULE_COUNT_MAX = 256
TEXT_LENGTH_MAX = 1_024
DELAY_MAX_S = 3_600.0
COUNT_MAX = 1 << 53
JSON_SIZE_MAX_BYTES = 256 << 10
DRAWN_WITHIN = 24
"""Among how many matches `drawn` places its faults, by default."""
U = TypeVar("U")
PREFIX = "/_outbox/"
TOKEN_LENGTH_MAX = 1_024
_METHODS = {"faults": ("GET", "POST", "DELETE"), "usage": ("GET", "DELETE")}


class FaultRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One fault: its kind, what it matches and how often it fires.

    `operation` and `where` (a container or queue) match a whole name, or its beginning where they end in `*`; `key`
    (a key or id) and `client` match any part.  Empty matches everything.  `count` None is without a limit.
    """

    kind: Kind
    operation: str = ""
    where: str = ""
    key: str = ""
    client: str = ""
    count: int | None = 1
    after: int = 0
    probability: float = 1.0
    seed: int = 0
    delay_s: float = 0.0
    retry_after_s: float = 0.0
    status: int = 0
    substatus: int = 0
    code: str = ""
    """The error code of a `status` fault's answer, where the service has one; empty: the status's usual one."""
    batch_index: int | None = None
    """Of `throttled` and `status`: which operation within a batch fails, instead of the batch as a request."""
    behind_count: int | None = None
    """Of `stale-read`: how many writes behind the answer is; None is as far as there is a memory."""

    def __post_init__(self) -> None:
        """Refuse what could never fire, or could not be done.

        Raises:
            ValueError: the text names the field and the cure.
        """
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r} is unknown; use one of {', '.join(sorted(KINDS))}")
        for name in ("operation", "where", "key", "client", "code"):
            text = getattr(self, name)
            if not isinstance(text, str) or len(text) > TEXT_LENGTH_MAX:
                raise ValueError(f"{name}={str(text)[:80]!r}: give text of at most {TEXT_LENGTH_MAX} characters")
        for name, value, least in (
            ("count", self.count, 1),
            ("after", self.after, 0),
            ("batch_index", self.batch_index, 0),
            ("behind_count", self.behind_count, 1),
        ):
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (is_whole and least <= value <= COUNT_MAX):
                raise ValueError(f"{name}={value!r}: give a whole number from {least}, or leave it out")
        for name, value_s in (("delay_s", self.delay_s), ("retry_after_s", self.retry_after_s)):
            if not _is_number(value_s) or not 0 <= value_s <= DELAY_MAX_S:
                raise ValueError(f"{name}={value_s!r}: give seconds from 0 to {DELAY_MAX_S:.0f}")
        if not _is_number(self.probability) or not 0 < self.probability <= 1:
            raise ValueError(f"probability={self.probability!r}: give a number above 0 and up to 1")
        self._check_kind()

    def _check_kind(self) -> None:
        kind, status, code, index = self.kind, self.status, self.code, self.batch_index
        for is_wrong, text in (
            (kind in ("delay", "pause") and not self.delay_s, f"a {kind} needs delay_s, its length in seconds"),
            (
                (kind == "status") != bool(status),
                f"kind={kind!r} with status={status}: a status belongs to kind='status', only",
            ),
            (
                code and (kind != "status" or not (code.isascii() and code.isalnum())),
                f"code={code[:80]!r}: letters and digits, of kind='status' only",
            ),
            (
                status and not (isinstance(status, int) and 400 <= status <= 599),
                f"status={status!r}: give one from 400 to 599",
            ),
            (
                not (isinstance(self.substatus, int) and 0 <= self.substatus <= 99_999),
                f"substatus={self.substatus!r}: give a whole number from 0 to 99999",
            ),
            (
                index is not None and kind not in ("throttled", "status"),
                f"batch_index belongs to kind='throttled' or 'status', not to {kind!r}",
            ),
            (index is not None and self.operation != "batch", f"batch_index={index} needs operation='batch'"),
        ):
            if is_wrong:
                raise ValueError(text)

    def matches(self, operation: str, where: str, key: str, client: str) -> bool:
        """Whether the rule is about such an operation."""
        return (
            _names(self.operation, operation)
            and _names(self.where, where)
            and self.key in key
            and self.client in client
        )


class Installed(msgspec.Struct, kw_only=True):
    """A rule in a registry, and what became of it so far."""

    id: int
    rule: FaultRule
    matched_count: int = 0
    fired_count: int = 0

    def fires(self, draw: Callable[[], float]) -> bool:
        """Count one match, and say whether the fault happens."""
        self.matched_count += 1
        rule = self.rule
        is_due = self.matched_count > rule.after and (rule.count is None or self.fired_count < rule.count)
        fires = is_due and (rule.probability >= 1 or draw() < rule.probability)
        self.fired_count += fires
        return fires


class Faults:
    """The rules that are installed; one registry may serve several emulators.  Not for several threads at once."""

    def __init__(self, rules: Sequence[FaultRule] = ()) -> None:
        self._entries: list[tuple[Installed, Callable[[], float]]] = []
        self._last_id = 0
        self._fired: Counter[str] = Counter()
        for rule in rules:
            self.install(rule)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def install(self, rule: FaultRule) -> int:
        """Add a rule behind the others; the number by which it can be removed.

        Raises:
            ValueError: there are too many.
        """
        if len(self._entries) >= RULE_COUNT_MAX:
            raise ValueError(f"{RULE_COUNT_MAX} fault rules are installed; remove some first")
        self._last_id += 1
        draw = random.Random(rule.seed).random  # reproducible on purpose
        self._entries.append((Installed(id=self._last_id, rule=rule), draw))
        return self._last_id

    def remove(self, id: int) -> bool:
        """Take a rule away; whether it was there."""
        kept = [entry for entry in self._entries if entry[0].id != id]
        found = len(kept) < len(self._entries)
        self._entries = kept
        return found

    def clear(self) -> None:
        """Take all rules away; what fired stays counted by kind."""
        self._entries = []

    def ask(
        self, operation: str, *, kinds: Collection[str] = KINDS, where: str = "", key: str = "", client: str = ""
    ) -> FaultRule | None:
        """The first rule that fires for this operation, of the kinds that can be done here; it is counted.

        A rule behind the one that fires does not see the operation.
        """
        for entry, draw in self._entries:
            rule = entry.rule
            if rule.kind in kinds and rule.matches(operation, where, key, client) and entry.fires(draw):
                self._fired[rule.kind] += 1
                return rule
        return None

    def has(self, kind: str) -> bool:
        """Whether a rule of this kind can still fire."""
        return any(
            entry.rule.kind == kind and (entry.rule.count is None or entry.fired_count < entry.rule.count)
            for entry, _ in self._entries
        )

    @property
    def fired(self) -> dict[str, int]:
        """How often each kind fired since the registry was made, removed rules included."""
        return dict(self._fired)

    def installed(self) -> list[Installed]:
        """The rules in the order in which they are asked, with their counts."""
        return [copy(entry) for entry, _ in self._entries]

    def as_json(self) -> bytes:
        """The rules and what fired, for a control endpoint."""
        return msgspec.json.encode({"rules": self.installed(), "fired": self.fired})

    def control(self, method: str, query: str, body: bytes) -> tuple[int, bytes]:
        """Answer a control request with a status and JSON: GET lists, POST installs, DELETE removes all or `id=N`.

        Raises:
            ValueError: the rules, or the query, cannot be read.
            LookupError: there is no such rule.
        """
        if method == "POST":
            return 201, msgspec.json.encode({"ids": [self.install(rule) for rule in rules_from_json(body)]})
        if method == "DELETE":
            name, _, number = query.partition("=")
            if not query:
                self.clear()
            elif name != "id" or not number.isascii() or not number.isdecimal() or len(number) > 15:
                raise ValueError(f"{query[:80]!r}: say ?id=NUMBER, or nothing to remove all rules")
            elif not self.remove(int(number)):
                raise LookupError(f"there is no fault rule {number}; list them")
        return 200, self.as_json()


def drawn(
    seed: int, kinds: Sequence[Kind], *, operation: str = "", where: str = "", within: int = DRAWN_WITHIN, **fields: Any
) -> tuple[FaultRule, ...]:
    """A rule for each of `kinds` that fires once, placed by chance among the first `within` matches.

    The same seed places them alike.  `fields` are further fields of the rules, such as `delay_s`; a field goes only to
    the kinds that take it.
    """
    draw = random.Random(seed)  # chosen by a seed on purpose
    rules = []
    for kind in kinds:
        mine = {name: value for name, value in fields.items() if kind in _ONLY_OF.get(name, KINDS)}
        at = draw.randrange(within)
        rules.append(FaultRule(kind=kind, operation=operation, where=where, after=at, **mine))
    return tuple(rules)


_ONLY_OF: dict[str, frozenset[str]] = {
    "status": frozenset(("status",)),
    "substatus": frozenset(("status",)),
    "code": frozenset(("status",)),
    "batch_index": frozenset(("status", "throttled")),
}


def rules_from_json(data: bytes) -> list[FaultRule]:
    """The rules in a JSON object or in an array of such objects.

    Raises:
        ValueError: it is neither, too large, or a field of a rule cannot be; the text names it.
    """
    if len(data) > JSON_SIZE_MAX_BYTES:
        raise ValueError(f"{len(data)} bytes of fault rules; send at most {JSON_SIZE_MAX_BYTES}")
    kind: Any = list[FaultRule] if data.lstrip()[:1] == b"[" else FaultRule
    try:
        found = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"no fault rule: {error}") from error
    return found if isinstance(found, list) else [found]


def _names(pattern: str, name: str) -> bool:
    if not pattern:
        return True
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def key_bytes(key: str) -> bytes:
    """An account's key, base64, as bytes.

    Raises:
        Refused: it is not base64, or empty.
    """
    try:
        found = base64.b64decode(key, validate=True)
    except ValueError as error:
        raise Refused("the account key is not base64; give one such as WELL_KNOWN_KEY") from error
    if not found:
        raise Refused("the account key is empty; give one such as WELL_KNOWN_KEY")
    return found


class Meter(Generic[U]):
    """Counts requests by operation, and what they came to."""

    def __init__(self, usage: type[U]) -> None:
        """`usage` is made of `count`, `failed_count` and the amounts that are counted."""
        self._usage = usage
        self._by_operation: dict[str, dict[str, float]] = {}

    def count(self, operation: str, status: int, **amounts: float) -> None:
        """Add one request; status 0 for one that got no answer."""
        used = self._by_operation.setdefault(operation, {"count": 0, "failed_count": 0})
        used["count"] += 1
        used["failed_count"] += not 0 < status < 400
        for name, amount in amounts.items():
            used[name] = used.get(name, 0) + amount

    def usage(self) -> dict[str, U]:
        """The use by operation, since the start or the last reset."""
        return {
            operation: self._usage(**{name: round(amount, 2) for name, amount in used.items()})
            for operation, used in sorted(self._by_operation.items())
        }

    def reset(self) -> None:
        """Count from zero."""
        self._by_operation.clear()


class Control:
    """The control of a running emulator, for an operator or a test."""

    def __init__(
        self, refusal: Callable[[int, str], Refusal], faults: Faults, meter: Meter[Any] | None, token: str
    ) -> None:
        """Raise what `refusal` makes of a status and a text; without a `meter` no use is counted."""
        self._refusal = refusal
        self._faults = faults
        self._meter = meter
        self._token = token.encode()

    def check(self, headers: Mapping[str, str]) -> None:
        """Let a request pass that names the token.

        Raises:
            Refusal: 401.
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        known = len(token) <= TOKEN_LENGTH_MAX and hmac.compare_digest(token.encode("utf-8", "replace"), self._token)
        if scheme.lower() != "bearer" or not known:
            raise self._refusal(401, "the token is missing or wrong; it is the emulator's control_token")

    async def answer(self, method: str, raw_path: str, body: bytes) -> Answer:
        """JSON for a request under the prefix, whose token was checked.

        Raises:
            Refusal: 400, 404 or 405.
        """
        path, _, query = raw_path[len(PREFIX) :].partition("?")
        if method not in _METHODS.get(path, ()):
            status = 405 if path in _METHODS else 404
            raise self._refusal(status, f"{method[:20]} {raw_path[:80]!r} is not there")
        if path == "faults":
            try:
                return _json(*self._faults.control(method, query, body))
            except ValueError as error:
                raise self._refusal(400, str(error)) from error
            except LookupError as error:
                raise self._refusal(404, str(error)) from error
        if self._meter is None:
            raise self._refusal(404, "no use is counted here")
        if method == "GET":
            return _json(200, msgspec.json.encode(self._meter.usage()))
        self._meter.reset()
        return _json(200, b"{}")


def _json(status: int, body: bytes) -> Answer:
    return Answer(status, {"Content-Type": "application/json"}, body)
