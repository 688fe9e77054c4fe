"""The contract of a `Journal`: a batch's whole effect in one commit, or nothing of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from outbox.engine_commit import WAITING, WAITING_ATTEMPT
from outbox.message import Message
from outbox.ports import (
    Commit,
    Conflict,
    DeadLettering,
    Delivery,
    Output,
    Ports,
    Postponement,
    Refusal,
    StateChange,
)
from outbox.verify.suites.clauses import Clause, Make, Wait, check, promise

IN, OUT = "contract", "contract-out"
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
STATE, OTHER_STATE = "Contract:a", "Contract:b"
LIFE_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class JournalFixture:
    """The parts that a check of a journal needs beside it.

    `ports` stand on an empty backend, whose time `wait` lets pass.  `killed` kills the process and gives the ports of
    the next one, on what was durable.
    """

    ports: Ports
    wait: Wait
    killed: Callable[[], Awaitable[Ports]]

    async def declare(self) -> None:
        """Make the queues."""
        await self.ports.operations.declare({IN: "unordered", OUT: "unordered"}, {})

    async def send(self, *ids: str) -> None:
        """Send messages from outside."""
        now_ms = self.ports.operations.now_ms()
        messages = [Message(body=id.encode(), outbox_id=id, type="T", created_ms=now_ms) for id in ids]
        await self.ports.operations.send([Output(IN, 0, message) for message in messages])

    async def claimed(self, queue: str = IN, count_max: int = 10) -> list[Delivery]:
        """The deliveries that can be claimed now."""
        return list(await self.ports.journal.claim([queue], count_max=count_max, wait_s=0))

    async def one(self, id: str = "a") -> Delivery:
        """Send a message and claim it."""
        await self.send(id)
        found = await self.claimed()
        promise(len(found) == 1, f"sent one message, claimed {[d.message.identity for d in found]}")
        return found[0]

    def commit(self, **parts: Any) -> Commit:
        """A commit of these parts."""
        now_ms = self.ports.operations.now_ms()
        empty: dict[str, Any] = {
            "consumed": [], "if_versions": {}, "states": {}, "outputs": [], "applied": {}, "refused": {},
            "replacing": {}, "dead_lettered": [], "postponed": [],
        }  # fmt: skip
        return Commit(now_ms=now_ms, markers_expire_ms=now_ms + LIFE_MS, **{**empty, **parts})

    async def does(self, **parts: Any) -> None:
        """A commit that has to take effect."""
        conflict = await self.ports.journal.commit(self.commit(**parts))
        promise(conflict is None, f"a commit whose conditions hold was refused: {conflict}")

    async def refuses(self, delivery: Delivery, **parts: Any) -> Conflict:
        """A commit that has to be refused and leave nothing, whatever else it holds."""
        effect = {"outputs": [output("ghost")], **whole(OTHER_KEY, OTHER_STATE), **parts}
        conflict = await self.ports.journal.commit(self.commit(**{"consumed": [delivery], **effect}))
        promise(conflict is not None, "a commit took effect though a condition does not hold")
        promise(await self.claimed(OUT) == [], "a refused commit sent a message")
        states, markers = await self.ports.journal.load([OTHER_STATE], [OTHER_KEY])
        promise(OTHER_STATE not in states, "a refused commit wrote a state")
        promise(OTHER_KEY not in markers, "a refused commit left a marker")
        return conflict or Conflict()

    async def version(self, id: str = STATE) -> int:
        """The version of a state, 0 where there is none."""
        states, _ = await self.ports.journal.load([id], [])
        return states[id].version if id in states else 0


def output(id: str, due_ms: int = 0) -> Output:
    """A message that a commit emits."""
    return Output(OUT, due_ms, Message(body=id.encode(), outbox_id=id, type="T"))


def whole(key: bytes = KEY, state: str = STATE, *, if_version: int = 0, value: bytes = b"1") -> dict[str, Any]:
    """The state and marker of an applied message."""
    return {
        "if_versions": {state: if_version},
        "states": {state: StateChange(value, 1, 1)},
        "applied": {key: b"f" * 32},
    }


async def check_journal(make: Make[JournalFixture], *, clauses: Sequence[Clause[JournalFixture]] | None = None) -> None:
    """Check a journal; `make` gives one on an empty backend.

    Raises:
        AssertionError: a promise is broken.
    """

    @asynccontextmanager
    async def declared() -> AsyncIterator[JournalFixture]:
        async with make() as at:
            await at.declare()
            yield at

    await check(declared, JOURNAL if clauses is None else clauses)


async def a_claimed_message_is_nobody_elses(at: JournalFixture) -> None:
    delivery = await at.one()
    promise((delivery.queue, delivery.from_outside) == (IN, True), f"claimed {delivery} of a message sent from outside")
    promise(await at.claimed() == [], "a claimed message was handed out again")


async def no_more_is_claimed_than_was_asked_for(at: JournalFixture) -> None:
    await at.send(*"abcde")
    promise(len(await at.claimed(count_max=3)) == 3, "three of five messages were asked for")


async def a_claim_is_on_record_before_it_is_handed_out(at: JournalFixture) -> None:
    await at.one()
    again = JournalFixture(await at.killed(), at.wait, at.killed)
    counts = [delivery.delivery_count for delivery in await again.claimed()]
    promise(counts == [1], f"a message that was claimed when its host died is delivered with counts {counts}, not [1]")


async def what_is_not_there_is_not_loaded(at: JournalFixture) -> None:
    found = await at.ports.journal.load([STATE], [KEY])
    promise(found == ({}, {}), f"loaded {found} of an empty backend")


async def a_commit_takes_effect_whole(at: JournalFixture) -> None:
    await at.does(consumed=[await at.one()], outputs=[output("out")], **whole())
    states, markers = await at.ports.journal.load([STATE], [KEY])
    promise(STATE in states and states[STATE].value == b"1", "the state was not written")
    promise(markers == {KEY: b"f" * 32}, f"the marker was not written: {markers}")
    emitted = await at.claimed(OUT)
    promise([(d.message.identity, d.from_outside) for d in emitted] == [("out", False)], f"emitted {emitted}")
    await at.wait(120)
    promise(await at.claimed() == [], "a consumed message came back")


async def a_commit_survives_the_process(at: JournalFixture) -> None:
    await at.does(consumed=[await at.one()], outputs=[output("out")], **whole())
    again = JournalFixture(await at.killed(), at.wait, at.killed)
    states, markers = await again.ports.journal.load([STATE], [KEY])
    promise(STATE in states and KEY in markers, "an acknowledged commit was lost with the process")
    promise(await again.claimed() == [], "a consumed message came back with the next process")
    promise(len(await again.claimed(OUT)) == 1, "an emitted message was lost with the process")


async def a_lock_of_an_earlier_process_commits_nothing(at: JournalFixture) -> None:
    delivery = await at.one()
    again = JournalFixture(await at.killed(), at.wait, at.killed)
    for _ in range(2):
        conflict = await again.refuses(delivery)
        promise(conflict.locks == {delivery.sequence}, f"the lost lock is not named: {conflict}")
        await again.claimed()  # now it is locked again, by another


async def a_lock_that_is_not_ours_any_more_commits_nothing(at: JournalFixture) -> None:
    delivery = await at.one()
    await at.ports.journal.release([delivery])
    for parts in ({}, {"consumed": [], "dead_lettered": [DeadLettering(delivery, "x", "", 1)]},
                  {"consumed": [], "postponed": [Postponement(delivery, 0, 1)]}):  # fmt: skip
        conflict = await at.refuses(delivery, **parts)
        promise(conflict.locks == {delivery.sequence}, f"the lost lock is not named: {conflict}")


async def a_delivery_ends_once(at: JournalFixture) -> None:
    delivery = await at.one()
    await at.refuses(delivery, consumed=[delivery, delivery])
    await at.refuses(delivery, dead_lettered=[DeadLettering(delivery, "x", "", 1)])
    await at.does(consumed=[delivery])
    await at.refuses(delivery)


async def a_state_that_moved_commits_nothing(at: JournalFixture) -> None:
    await at.does(consumed=[await at.one("a")], **whole())
    version = await at.version()
    await at.does(consumed=[await at.one("b")], **whole(b"b" * 32, if_version=version, value=b"2"))
    delivery = await at.one("c")
    for stale in (version, 0):
        conflict = await at.refuses(delivery, if_versions={STATE: stale})
        promise(conflict.states == {STATE}, f"the state that moved is not named: {conflict}")
    await at.does(consumed=[delivery], if_versions={STATE: await at.version()})


async def a_condition_alone_changes_no_version(at: JournalFixture) -> None:
    await at.does(consumed=[await at.one("a")], **whole())
    version = await at.version()
    await at.does(consumed=[await at.one("b")], if_versions={STATE: version})
    promise(await at.version() == version, "a state that was only read has a new version")


async def a_deleted_state_is_none_and_its_old_versions_stay_stale(at: JournalFixture) -> None:
    await at.does(consumed=[await at.one("a")], **whole())
    version = await at.version()
    await at.does(consumed=[await at.one("b")], **whole(b"b" * 32, if_version=version, value=b""))
    promise(await at.ports.operations.state(STATE) is None, "a deleted state is read")
    delivery = await at.one("c")
    await at.refuses(delivery, if_versions={STATE: version})
    await at.refuses(delivery, if_versions={STATE: 0})


async def a_marker_that_is_there_commits_nothing(at: JournalFixture) -> None:
    await at.does(consumed=[await at.one("a")], applied={KEY: b"f" * 32})
    delivery = await at.one("b")
    for parts in ({"applied": {KEY: b"f" * 32}}, {"applied": {}, "refused": {KEY: Refusal(b"f" * 32, "x", "")}}):
        conflict = await at.refuses(delivery, **parts)
        promise(conflict.markers == {KEY}, f"the marker that is there is not named: {conflict}")
    await at.refuses(delivery, applied={KEY: b"g" * 32}, replacing={KEY: 9})


async def a_refusal_is_replaced_by_a_higher_attempt_only(at: JournalFixture) -> None:
    await at.does(consumed=[await at.one("a")], refused={KEY: Refusal(b"f" * 32, "first", "", 1)})
    delivery = await at.one("b")
    for attempt in (0, 1):
        await at.refuses(delivery, applied={KEY: b"f" * 32}, replacing={KEY: attempt})
    await at.refuses(delivery, applied={KEY: b"f" * 32})
    await at.does(consumed=[delivery], applied={KEY: b"f" * 32}, replacing={KEY: 2})
    _, markers = await at.ports.journal.load([], [KEY])
    promise(markers == {KEY: b"f" * 32}, f"a resubmission that was applied left {markers}")


async def a_marker_of_a_message_that_waits_stays_until_it_is_replaced(at: JournalFixture) -> None:
    waiting = Refusal(b"f" * 32, WAITING, "", WAITING_ATTEMPT)
    journal, delivery = at.ports.journal, await at.one("a")
    commit = at.commit(postponed=[Postponement(delivery, 0, 0)], refused={KEY: waiting})
    commit.markers_expire_ms = 0
    promise(await journal.commit(commit) is None, "a message that waits was not put on record")
    await at.wait(10 * LIFE_MS / 1_000)
    _, markers = await journal.load([], [KEY])
    promise(markers == {KEY: waiting}, f"of a message that waits there is {markers} after ten lives of a marker")
    await at.does(consumed=await at.claimed(), applied={KEY: b"f" * 32}, replacing={KEY: 0})
    _, markers = await journal.load([], [KEY])
    promise(markers == {KEY: b"f" * 32}, f"a message that waited and was applied left {markers}")
    await at.wait(2 * LIFE_MS / 1_000)
    await at.does(consumed=[await at.one("b")], applied={OTHER_KEY: b"f" * 32})
    await at.does(consumed=[await at.one("c")], applied={KEY: b"g" * 32})


async def a_dead_lettered_message_keeps_its_reason(at: JournalFixture) -> None:
    await at.does(dead_lettered=[DeadLettering(await at.one(), "unfit", "because", 3)])
    dead_letters = await at.ports.operations.dead_letters(IN)
    found = [(b.message.identity, b.reason, b.description, b.delivery_count) for b in dead_letters]
    promise(found == [("a", "unfit", "because", 3)], f"dead-lettered after 3 failures, found {found}")
    promise(await at.claimed() == [], "a dead letter is still in its queue")


async def a_postponed_message_rests_and_keeps_its_count(at: JournalFixture) -> None:
    now_ms = at.ports.operations.now_ms()
    await at.does(postponed=[Postponement(await at.one(), now_ms + 30_000, 2)])
    promise(await at.claimed() == [], "a postponed message was claimed before its time")
    await at.wait(31)
    found = [(d.failures, d.delivery_count) for d in await at.claimed()]
    promise(found == [(2, 0)], f"postponed after 2 failures, claimed with (failures, deliveries) {found}")


async def an_emitted_message_is_not_seen_before_its_time(at: JournalFixture) -> None:
    due_ms = at.ports.operations.now_ms() + 30_000
    await at.does(consumed=[await at.one()], outputs=[output("later", due_ms)])
    promise(await at.claimed(OUT) == [], "a scheduled output was seen before its time")
    await at.wait(31)
    promise(len(await at.claimed(OUT)) == 1, "a scheduled output did not come at its time")


async def a_released_message_comes_back_uncounted(at: JournalFixture) -> None:
    delivery = await at.one()
    await at.ports.journal.release([delivery])
    found = [d.delivery_count for d in await at.claimed()]
    promise(found == [0], f"a released message came back with counts {found}")
    await at.ports.journal.release([delivery])
    promise(await at.claimed() == [], "a release under an old lock released another holder's message")


async def a_renewal_extends_and_counts_what_is_still_ours(at: JournalFixture) -> None:
    first, second = await at.one("a"), await at.one("b")
    await at.wait(40)
    promise(await at.ports.journal.renew([first]) == 1, "a lock that is held was not renewed")
    await at.wait(40)
    found = [d.message.identity for d in await at.claimed()]
    promise(found == ["b"], f"after 80 s with locks of 60 s and one renewed, claimed {found}")
    promise(await at.ports.journal.renew([first, second]) == 1, "a lock that ran out was counted as renewed")
    await at.does(consumed=[first])
    promise(await at.ports.journal.renew([first]) == 0, "the lock of a committed message was counted as renewed")


JOURNAL: tuple[Clause[JournalFixture], ...] = (
    a_claimed_message_is_nobody_elses,
    no_more_is_claimed_than_was_asked_for,
    a_claim_is_on_record_before_it_is_handed_out,
    what_is_not_there_is_not_loaded,
    a_commit_takes_effect_whole,
    a_commit_survives_the_process,
    a_lock_of_an_earlier_process_commits_nothing,
    a_lock_that_is_not_ours_any_more_commits_nothing,
    a_delivery_ends_once,
    a_state_that_moved_commits_nothing,
    a_condition_alone_changes_no_version,
    a_deleted_state_is_none_and_its_old_versions_stay_stale,
    a_marker_that_is_there_commits_nothing,
    a_refusal_is_replaced_by_a_higher_attempt_only,
    a_marker_of_a_message_that_waits_stays_until_it_is_replaced,
    a_dead_lettered_message_keeps_its_reason,
    a_postponed_message_rests_and_keeps_its_count,
    an_emitted_message_is_not_seen_before_its_time,
    a_released_message_comes_back_uncounted,
    a_renewal_extends_and_counts_what_is_still_ours,
)
"""The clauses of a journal's contract, each a promise by its name."""
