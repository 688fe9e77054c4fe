"""The algorithm of the Exactly-Once talk, as it was published, and the repairs, one flag each.

A state carries a pointer to the transaction that changed it last; what that one sends is staged under its id before.
One attempt: load the state, finish the transaction that it points to, look for the message's result, run, stage, swap
the state (the point of no return), turn what is staged into the message's result, clear the pointer, send, complete.

The handler here is not deterministic: what it sends names its attempt.  Each host has one session with the store, which
it loses in a crash.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from outbox.errors import OutcomeUnknown, Throttled
from outbox.verify.explorer.ops import Finding, Op, Outcome
from outbox.verify.explorer.run import Calls
from tests.simulation.prior_art.inbox import Delivery, Tasks
from tests.simulation.prior_art.keyvalue import Found, Lost, Put, Shelves, Wrote, cells
from tests.simulation.prior_art.small import Watch

STORE, QUEUE = 0, 1
STATE, OUTBOX = "account", "outbox"
TRY_COUNT_MAX = 6


@dataclass(frozen=True)
class Rules:
    """What the repairs add to the published algorithm."""

    creates: bool = False
    """The first write of a state creates it; published: an upsert, which overwrites."""
    keeps: bool = False
    """A staged result is deleted only when its swap has lost for sure; published: after any error."""
    looks_again: bool = False
    """After staging, the message's result is looked for again, in the session of that write."""
    carries_token: bool = False
    """A pointer names the session in which its staged result can be read."""
    refreshes: bool = False
    """After finishing somebody else's transaction the swap goes by the version that this has left."""


PUBLISHED = Rules()
REPAIRED = Rules(creates=True, keeps=True, looks_again=True, carries_token=True, refreshes=True)


class Account(NamedTuple):
    """A state: the messages applied to it, the transaction that it points to, and where that one can be read."""

    applied: tuple[str, ...] = ()
    tx: str = ""
    token: int = 0


class Staged(NamedTuple):
    """What a transaction sends, for which message, and how many changes the state had when it was computed."""

    message: str
    output: str
    base: int


class Moved(Exception):
    """The state was changed by somebody else."""


class Session:
    """A client of the store: it never reads from before what it has seen itself."""

    def __init__(self, calls: Calls, tokens: Sequence[tuple[str, int]]) -> None:
        self._calls = calls
        self.tokens = dict(tokens)

    async def read(self, partition: str, key: str, token: int = 0) -> Found:
        found: Found = await self._calls(STORE, "read", partition, key, max(token, self.tokens.get(partition, 0)))
        self._note(partition, found.token)
        return found

    async def write(self, partition: str, *puts: Put) -> Wrote | Lost:
        answer: Wrote | Lost = await self._calls(STORE, "write", partition, puts)
        self._note(partition, answer.token if isinstance(answer, Wrote) else answer.current.token)
        return answer

    def _note(self, partition: str, token: int) -> None:
        if token:
            self.tokens[partition] = max(token, self.tokens.get(partition, 0))


class Host:
    """A process that takes one message after the other."""

    name = "host"

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        session = Session(calls, carried or ())
        with suppress(OutcomeUnknown, Throttled, Moved):  # the host gives the message back: its lock runs out
            delivery: Delivery = await calls(QUEUE, "receive")
            output = await Once(calls, session, self._rules).handle(delivery.message)
            await calls(QUEUE, "send", delivery.message, output)
            await calls(QUEUE, "complete", delivery)
        return tuple(sorted(session.tokens.items())) or None


class Once:
    """One message, handled once."""

    def __init__(self, calls: Calls, session: Session, rules: Rules) -> None:
        self._calls = calls
        self._session = session
        self._rules = rules

    async def handle(self, message: str) -> str:
        """What the message sends; tried again as long as others are faster.

        Raises:
            Moved: they always were.
        """
        for _ in range(TRY_COUNT_MAX):
            with suppress(Moved):
                return await self._attempt(message)
        raise Moved

    async def _attempt(self, message: str) -> str:
        rules, session = self._rules, self._session
        loaded = await session.read(STATE, "state")
        account, version = Account(*loaded.value or ()), loaded.version
        if account.tx:
            finished = await self._finish(account, version)
            account, version = account._replace(tx=""), finished if rules.refreshes else version
        result = await session.read(OUTBOX, f"done:{message}")
        if result.value is not None:
            return Staged(*result.value).output
        tx = self._calls.new_id()
        staged = Staged(message, f"{message}/{tx}", len(account.applied))
        wrote = await session.write(OUTBOX, Put(f"staged:{tx}", staged))
        assert isinstance(wrote, Wrote), "a blind write is never lost"
        if rules.looks_again:
            result = await session.read(OUTBOX, f"done:{message}", wrote.token)
            if result.value is not None:
                await self._unstage(tx)
                return Staged(*result.value).output
        after = Account((*account.applied, message), tx, wrote.token if rules.carries_token else 0)
        swapped = await self._swap(after, version)
        await self._finish(after, swapped)
        return staged.output

    async def _swap(self, after: Account, version: int) -> int:
        """The point of no return; the state's version after it."""
        blind = not version and not self._rules.creates
        try:
            answer = await self._session.write(STATE, Put("state", after, None if blind else version))
        except (OutcomeUnknown, Throttled):
            if not self._rules.keeps:
                await self._unstage(after.tx)
            raise
        if isinstance(answer, Lost):
            await self._unstage(after.tx)
            raise Moved
        return answer.version

    async def _finish(self, account: Account, version: int) -> int:
        """Turn what a transaction has staged into its message's result, and clear the pointer to it."""
        key = f"staged:{account.tx}"
        staged = await self._session.read(OUTBOX, key, account.token)
        if staged.value is not None:  # else somebody else has done so
            done = Put(f"done:{Staged(*staged.value).message}", staged.value)
            await self._session.write(OUTBOX, Put(key, None), done)
        answer = await self._session.write(STATE, Put("state", account._replace(tx=""), version))
        if isinstance(answer, Lost):
            raise Moved
        return answer.version

    async def _unstage(self, tx: str) -> None:
        await self._session.write(OUTBOX, Put(f"staged:{tx}", None))


class Sweeper:
    """Reclaims what was staged in vain: of which a state is past that does not point to it.  A repair, too."""

    name = "sweeper"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        session = Session(calls, ())
        keys, mark = await calls(STORE, "sweep", OUTBOX, "staged:", carried or "")
        with suppress(OutcomeUnknown, Throttled):
            for key in keys:
                staged = await session.read(OUTBOX, key)
                account = Account(*(await session.read(STATE, "state")).value or ())
                base = Staged(*staged.value).base if staged.value is not None else len(account.applied)
                if len(account.applied) > base and key != f"staged:{account.tx}":
                    await session.write(OUTBOX, Put(key, None))
                    return None
        seen: str = mark
        return seen  # nothing to reclaim until something changes


class TalkMonitor(Watch):
    """The promises, decided from the state and from what was sent."""

    def __init__(self, messages: Sequence[str], *promises: str) -> None:
        super().__init__(*promises)
        self._messages = messages

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        return op.args if op.resource == QUEUE and op.verb == "send" else None

    def step(self, ghost: tuple[tuple[str, str], ...], event: tuple[str, str]) -> Hashable:
        return tuple(sorted({*ghost, event}))

    def check(self, ghost: tuple[tuple[str, str], ...], states: Sequence[Any]) -> Finding | None:
        applied, sent = _applied(states[STORE]), [message for message, _ in ghost]
        found = [
            Finding("NoDuplicate", f"{m} changed the state twice") for m in sent + list(applied) if applied.count(m) > 1
        ]
        found += [Finding("NoGhost", f"{m} has sent and not changed the state") for m in sent if m not in applied]
        found += [Finding("ConsistentOutput", f"{m} has sent two results") for m in sent if sent.count(m) > 1]
        return next(iter(self.chosen(found)), None)

    def is_over(self, ghost: Any, states: Sequence[Any], now_ms: int) -> bool:
        return False

    def final(self, ghost: tuple[tuple[str, str], ...], states: Sequence[Any], now_ms: int) -> list[Finding]:
        applied, sent = _applied(states[STORE]), [message for message, _ in ghost]
        left: Tasks = states[QUEUE]
        found = [Finding("NoLost", f"{m} changed the state and sent nothing") for m in applied if m not in sent]
        found += [Finding("EveryMessageEnds", f"{m} was not applied") for m in self._messages if m not in applied]
        found += [Finding("EveryMessageEnds", f"{task.delivery.message} is not completed") for task in left]
        staged = [key for key in cells(states[STORE], OUTBOX) if key.startswith("staged:")]
        found += [Finding("StagedVanish", f"{key} is left for ever") for key in staged]
        return self.chosen(found)


def _applied(state: Shelves) -> tuple[str, ...]:
    return Account(*cells(state, STATE).get("state", ())).applied
