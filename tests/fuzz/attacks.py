"""What hostile or broken clients do to a server, while another client is watched.

Each attack takes a door and chance, and ends by itself.  `beside` sends the other client's requests meanwhile and
measures how long they take.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_to_bytes

from tests.fuzz.doors import Door
from tests.fuzz.nonsense import mutated

ANSWER_WITHIN_S = 10.0
TOKEN = re.compile(rb"(?i)(authorization: (?:bearer )?)([^\r]+)")

Attack = Callable[[Door, random.Random, int], Coroutine[Any, Any, None]]


async def ask(
    door: Door, request: bytes | None = None, *, end: bool = False, within_s: float = ANSWER_WITHIN_S
) -> bytes:
    """Send a request on a connection of its own; the first bytes of its answer, empty where the server closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            with suppress(ConnectionError):
                writer.write(door.requests[0] if request is None else request)
                if end:
                    writer.write_eof()
                return await reader.read(1 << 16)
            return b""
    finally:
        writer.close()


async def nonsense(door: Door, chance: random.Random, count: int) -> None:
    """Requests with some of their bytes changed, each on a connection of its own."""
    for _ in range(count):
        await ask(door, mutated(chance, chance.choice(door.requests)), end=True)


async def resets(door: Door, chance: random.Random, count: int) -> None:
    """Requests that break off somewhere, and answers that nobody waits for."""
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", door.port)
        request = chance.choice(door.requests)
        writer.write(request[: chance.randrange(len(request) + 1)])
        if chance.random() < 0.5:
            await asyncio.sleep(0)
        writer.transport.abort()


async def slow(door: Door, chance: random.Random, count: int) -> None:
    """Clients that send a byte now and then, and never the last."""

    async def drip() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", door.port)
        with suppress(ConnectionError):
            for at in range(min(20, len(door.requests[0]) - 1)):
                writer.write(door.requests[0][at : at + 1])
                await asyncio.sleep(0.02 * chance.random())
        writer.close()

    await asyncio.gather(*(drip() for _ in range(min(count, door.room, door.begun))))


async def flood(door: Door, chance: random.Random, count: int) -> None:
    """Connections that send nothing, all open at once."""
    opened = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(min(count, door.room))]
    await asyncio.sleep(0.2)
    for _, writer in opened:
        writer.close()


async def unread(door: Door, chance: random.Random, count: int) -> None:
    """Many requests on one connection whose answers are not read."""
    _, writer = await asyncio.open_connection("127.0.0.1", door.port)
    request = door.requests[0].replace(b"Connection: close", b"Connection: keep-alive")
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(2):
            for _ in range(count):
                writer.write(request)
                await writer.drain()
    await asyncio.sleep(0.1)
    writer.transport.abort()


async def bad_tokens(door: Door, chance: random.Random, count: int) -> None:
    """Requests with tokens that are almost right."""
    for _ in range(count):
        request = chance.choice(door.requests)
        found = TOKEN.search(request)
        if found is None:
            return
        token = bytearray(found[2])
        token[chance.randrange(len(token))] = chance.choice(b"abcxyz0123456789%=")
        answer = await ask(door, request[: found.start(2)] + bytes(token) + request[found.end(2) :], end=True)
        is_same = unquote_to_bytes(bytes(token)) == unquote_to_bytes(found[2])  # as where %2B becomes %2b
        assert is_same or not answer.startswith(b"HTTP/1.1 2"), "a wrong token is taken"


ATTACKS: dict[str, tuple[Attack, int]] = {
    "nonsense": (nonsense, 150),
    "resets": (resets, 150),
    "slow clients": (slow, 60),
    "a flood of connections": (flood, 200),
    "unread answers": (unread, 2_000),
    "bad tokens": (bad_tokens, 150),
}
"""Each with how many clients or requests a test run has."""


async def beside(door: Door, attack: Coroutine[Any, Any, None]) -> float:
    """Run an attack while another client sends its requests; the longest that one took, in seconds."""
    longest_s = 0.0
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(attack)
        has_ended = False
        while not has_ended:
            has_ended = running.done()  # and once more after its end
            started_s = time.monotonic()
            answer = await ask(door)
            assert answer.startswith(door.answer), f"another client gets {answer[:200]!r}"
            longest_s = max(longest_s, time.monotonic() - started_s)
            await asyncio.sleep(0.02)
    return longest_s
