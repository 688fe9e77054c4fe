"""A bare loop: W1's handler with a context, lineage ids, dedupe and one record a batch, and no framework round it.

It has what a handler of ours sees (a typed message, a state, a context that captures what is sent) and what a commit of
ours stores, over the same log.  It has no claims and no locks, so a second worker would repeat its work; no conditions,
so it would overwrite; no retries, dead letters, age fence or payload check; and its queue lives in memory.  What it
costs beyond the floor is Python's price for the handler, what ours costs beyond it is the framework's.
"""

from __future__ import annotations

import os
import time
from collections import deque
from hashlib import sha256
from pathlib import Path

import msgspec

from outbox.engine.log.disk import FolderDisk
from outbox.engine.log.wal import Log
from outbox.message import Message
from outbox_bench.measure import Add, Added, Counter, Measurement, Stopwatch, expected_total, inputs, measured

SYSTEM = "bare"
VARIANTS = ("flush64",)
BATCH_COUNT = 64
RECORD_TYPE = 200
CREATED_MS = 1_700_000_000_000
DONE = object()

decode_add = msgspec.json.Decoder(Add).decode
decode_counter = msgspec.json.Decoder(Counter).decode
encode = msgspec.json.Encoder().encode
encode_record = msgspec.msgpack.Encoder().encode


class Record(msgspec.Struct, array_like=True, gc=False):
    """What one batch's commit must hold."""

    consumed: list[int]
    states: dict[str, bytes]
    outputs: list[Message]
    applied: dict[bytes, bytes]


class Context(msgspec.Struct, gc=False):
    """Captures what a handler sends."""

    inbox: bytes
    cause: Message
    now_ms: int
    outputs: list[Message] = []

    def send(self, message: Added) -> None:
        cause = self.cause
        sent = Message(
            body=encode(message),
            outbox_id=f"{self.inbox.hex()}-{len(self.outputs)}",
            type="Added",
            created_ms=self.now_ms,
            correlation_id=cause.correlation_id or cause.outbox_id,
            causation_id=cause.outbox_id,
            hops=cause.hops + 1,
        )
        self.outputs.append(sent)


async def add(message: Add, counter: Counter, ctx: Context) -> None:
    counter.total += message.amount
    counter.changes += 1
    ctx.send(Added(message.id, message.account, counter.total))


class Loop:
    """The queue, the states and what was seen, in memory, and the log."""

    def __init__(self, log: Log, messages: list[Message]) -> None:
        self.log = log
        self.tasks = dict(enumerate(messages))
        self.states: dict[str, bytes] = {}
        self.seen: dict[bytes, bytes] = {}
        self.sent: list[Message] = []

    def run(self) -> tuple[list[float], int]:
        """Handle everything, 64 messages a flush; gives the latencies and the number of flushes."""
        waiting, clock = deque(self.tasks), time.perf_counter
        latencies_s: list[float] = []
        flush_count = 0
        while waiting:
            started = clock()
            batch = [waiting.popleft() for _ in range(min(BATCH_COUNT, len(waiting)))]
            record = self.handled(batch)
            self.log.append(RECORD_TYPE, encode_record(record))
            self.log.write()
            self.log.sync()
            flush_count += 1
            self.apply(record)
            latencies_s.extend([clock() - started] * len(batch))
        return latencies_s, flush_count

    def handled(self, batch: list[int]) -> Record:
        """Run the handler on each message in turn."""
        states, seen, now_ms = self.states, self.seen, time.time_ns() // 1_000_000
        record = Record(batch, {}, [], {})
        changed, outputs, applied = record.states, record.outputs, record.applied
        for sequence in batch:
            cause = self.tasks[sequence]
            message = decode_add(cause.body)
            account = message.account
            inbox = sha256(b"%b:%b" % (account.encode(), cause.outbox_id.encode())).digest()
            if inbox in seen or inbox in applied:
                continue
            known = changed.get(account) or states.get(account)
            state = decode_counter(known) if known else Counter()
            context = Context(inbox, cause, now_ms)
            if next(add(message, state, context).__await__(), DONE) is not DONE:
                raise AssertionError("the handler of W1 waits for nothing")
            changed[account] = encode(state)
            outputs += context.outputs
            applied[inbox] = inbox  # for the payload's digest, which is taken when a message arrives
        return record

    def apply(self, record: Record) -> None:
        for sequence in record.consumed:
            del self.tasks[sequence]
        self.states.update(record.states)
        self.seen.update(record.applied)
        self.sent += record.outputs


def run(variant: str, folder: Path, message_count: int) -> Measurement:
    """Run W1 in `folder`, which must be fresh, and check what came of it."""
    messages = [
        Message(body=encode(message), outbox_id=message.id, type="Add", created_ms=CREATED_MS)
        for message in inputs(message_count)
    ]
    log = Log.open(FolderDisk(folder / "bare.data"), log_id=os.urandom(16), clock_ms=lambda: CREATED_MS)
    try:
        loop = Loop(log, messages)
        watch = Stopwatch()
        latencies_s, flush_count = loop.run()
        watch.stop()
    finally:
        log.close()
    verify(loop, message_count)
    return measured(
        system=SYSTEM,
        variant=variant,
        in_flight=BATCH_COUNT,
        durable=True,
        watch=watch,
        latencies_s=latencies_s,
        flush_count=flush_count,
    )


def verify(loop: Loop, message_count: int) -> None:
    """A run that lost or doubled anything is no measurement."""
    total = sum(decode_counter(state).total for state in loop.states.values())
    ids = {message.outbox_id for message in loop.sent}
    found = (total, len(loop.seen), len(loop.sent), len(ids), len(loop.tasks))
    if found != (expected_total(message_count), message_count, message_count, message_count, 0):
        raise AssertionError(f"bare loop: found {found} for {message_count} messages; do not publish this run")
