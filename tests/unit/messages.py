"""Messages and states that many tests handle, and how they are: one that needs other fields has its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outbox.testing import Harness
from outbox.worker import Worker


@dataclass
class Step:
    key: str
    n: int = 0
    what: str = ""


@dataclass
class Steps:
    ns: list[int] = field(default_factory=list)


@dataclass
class Task:
    key: str


@dataclass
class Count:
    n: int = 0


@dataclass
class Order:
    key: str
    how: str = ""


@dataclass
class Seen:
    count: int = 0


@dataclass
class Line:
    book: str
    text: str


@dataclass
class Book:
    lines: list[str] = field(default_factory=list)


@dataclass
class Deposit:
    account: str
    amount: int


@dataclass
class Transfer:
    id: str
    source: str
    target: str
    amount: int


@dataclass
class Account:
    balance: int = 0


@dataclass
class Number:
    n: int


@dataclass
class Total:
    sum: int = 0


@dataclass
class Page:
    text: str


@dataclass
class Reading:
    sensor: str
    degrees: float


async def deliver(to: Harness | Worker, queue: str, message: Any, **options: Any) -> None:
    """Send a message, and wait until it is handled, and all that it caused."""
    await to.send(queue, message, **options)
    await to.wait_idle()


async def deliver_raw(to: Harness | Worker, queue: str, body: bytes, **options: Any) -> None:
    """Send a body as another program may, and wait until it is handled."""
    await to.send_raw(queue, body, **options)
    await to.wait_idle()


async def resubmit(at: Harness | Worker, queue: str, id: str, **options: Any) -> None:
    """Resubmit a dead letter, and wait until it is handled."""
    await at.resubmit(queue, id, **options)
    await at.wait_idle()
