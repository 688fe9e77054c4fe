"""Messages and states that many tests handle; one that needs other fields has its own."""

from __future__ import annotations

from dataclasses import dataclass, field


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
class Reading:
    sensor: str
    degrees: float
