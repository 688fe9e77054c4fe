"""The way to Azure and back, on this machine: a proxy that holds every byte for half a round trip.

    python -m outbox_bench.latency --rtt-ms 10 [--settle-ms 20,100] [--seed 1] PORT ...

It listens on a port of its own for each PORT of 127.0.0.1, prints them as one line of JSON, and serves until its input
ends.  Bytes keep their order.  With `--settle-ms` each frame by which a broker confirms a settlement waits for one of
these times as well, drawn by the seed, and what comes behind it does not wait for it: half of the settlements on Azure
were measured at about 20 ms and half at about 100 (azure-service-bus issue 749).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from outbox_bench.side_process import program

HELD_BYTES_MAX = 64 << 20
"""What one connection may have on its way in one direction; more stays with its sender."""
FRAME_BYTES_MAX = 4 << 20
GREETING = b"AMQP"
GREETING_BYTES = 8
SENDER_CONFIRMS = (b"\x53\x15\xc0", b"\x53\x15\xd0")
"""How a disposition begins, as a short list or a long one."""
FALSE = (0x42, 0x56)


class Way:
    """One direction of a connection: what comes in leaves after a while."""

    def __init__(self, hold_s: float, leave: Callable[[bytes], None]) -> None:
        self._hold_s = hold_s
        self._leave = leave
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._loop = asyncio.get_running_loop()

    @property
    def is_full(self) -> bool:
        """Whether no more should come in for now."""
        return self._held_bytes > HELD_BYTES_MAX

    def enter(self, data: bytes) -> None:
        """Take bytes in; they leave behind all that came before."""
        if not self._held:
            self._loop.call_later(self._hold_s, self._let_go)
        self._held.append((self._loop.time() + self._hold_s, data))
        self._held_bytes += len(data)

    def _let_go(self) -> None:
        now_s = self._loop.time()
        due: list[bytes] = []
        while self._held and self._held[0][0] <= now_s:
            due.append(self._held.popleft()[1])
        if due:
            self._held_bytes -= sum(map(len, due))
            self._leave(b"".join(due))
        if self._held:
            self._loop.call_at(self._held[0][0], self._let_go)


class Frames:
    """Cuts what a broker sends into frames, and holds the confirmations of settlements for longer."""

    def __init__(self, way: Way, leave: Callable[[bytes], None], hold_s: float, extra_s: Callable[[], float]) -> None:
        self._way = way
        self._leave = leave
        self._hold_s = hold_s
        self._extra_s = extra_s
        self._begun = bytearray()
        self._is_amqp: bool | None = None
        self._loop = asyncio.get_running_loop()

    def enter(self, data: bytes) -> None:
        """Take bytes in; the port may be one for management by HTTP as well."""
        if self._is_amqp is None:
            self._is_amqp = data.startswith(GREETING)
        if not self._is_amqp:
            self._way.enter(data)
            return
        self._begun += data
        while len(self._begun) >= GREETING_BYTES:
            size = GREETING_BYTES if self._begun[:4] == GREETING else int.from_bytes(self._begun[:4])
            if not GREETING_BYTES <= size <= FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {size} bytes: this is not AMQP")
            if len(self._begun) < size:
                return
            frame = bytes(self._begun[:size])
            del self._begun[:size]
            if confirms_settlement(frame):
                self._loop.call_later(self._hold_s + self._extra_s(), self._leave, frame)
            else:
                self._way.enter(frame)


def confirms_settlement(frame: bytes) -> bool:
    """Whether a frame is a disposition of the side that sends messages."""
    body = frame[4 * frame[4] :]
    if frame[:4] == GREETING or frame[5] != 0 or body[1:4] not in SENDER_CONFIRMS:
        return False
    role = 6 if body[3] == 0xC0 else 12  # behind the list's size and count
    return len(body) > role and body[role] in FALSE


class Proxy:
    """Connections to one port, each held up on both ways."""

    def __init__(self, port: int, rtt_s: float, settle_s: Sequence[float] = (), seed: int = 0) -> None:
        self._port = port
        self._hold_s = rtt_s / 2
        self._settle_s = tuple(settle_s)
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        """Listen; the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        away = Way(self._hold_s, back.write)
        home = Way(self._hold_s, writer.write)
        enter = home.enter
        if self._settle_s:
            enter = Frames(home, writer.write, self._hold_s, self._drawn_s).enter
        tasks = [asyncio.create_task(carry(reader, away, away.enter)), asyncio.create_task(carry(there, home, enter))]
        with suppress(asyncio.CancelledError):  # the program ends
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(self._hold_s + max(self._settle_s, default=0.0))  # what is on its way still arrives
        for task in tasks:
            task.cancel()
        writer.close()
        back.close()

    def _drawn_s(self) -> float:
        return self._random.choice(self._settle_s)


async def carry(reader: asyncio.StreamReader, way: Way, enter: Callable[[bytes], None]) -> None:
    """Have all that comes go its way, until its sender ends it."""
    while data := await reader.read(1 << 16):
        enter(data)
        while way.is_full:  # noqa: ASYNC110  # it empties by itself
            await asyncio.sleep(0.001)


async def serve(ports: Sequence[int], rtt_s: float, settle_s: Sequence[float], seed: int) -> None:
    """Serve until the input ends."""
    proxies = [Proxy(port, rtt_s, settle_s, seed + n) for n, port in enumerate(ports)]
    print(json.dumps([await proxy.open() for proxy in proxies]), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for proxy in proxies:
        await proxy.close()


@asynccontextmanager
async def delayed(
    *ports: int, rtt_ms: float, settle_ms: Sequence[float] = (), seed: int = 1
) -> AsyncIterator[list[int]]:
    """Ports that lead to these a round trip away, in a process that ends with the context."""
    options = ["--rtt-ms", str(rtt_ms), "--seed", str(seed)]
    if settle_ms:
        options += ["--settle-ms", ",".join(map(str, settle_ms))]
    async with program("outbox_bench.latency", *options, *map(str, ports)) as (_, found):
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m outbox_bench.latency", description="Hold bytes for a while.")
    parser.add_argument("--rtt-ms", type=float, default=10.0)
    parser.add_argument("--settle-ms", type=lambda text: [float(part) for part in text.split(",")], default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("ports", type=int, nargs="+", metavar="PORT")
    options = parser.parse_args()
    settle_s = [each / 1_000 for each in options.settle_ms]
    asyncio.run(serve(options.ports, options.rtt_ms / 1_000, settle_s, options.seed))


if __name__ == "__main__":
    main()
