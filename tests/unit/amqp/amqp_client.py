"""A client's side of the protocol, as bytes: what the tests need to speak to a connection without the SDK."""

from __future__ import annotations

from outbox.emulator.amqp import performatives, types
from outbox.emulator.amqp.frames import HEADER_AMQP, HEADER_SASL, TYPE_SASL, frame
from outbox.emulator.amqp.types import FALSE, NULL, TRUE, binary, described, list_, map_, string, symbol, uint, ushort

SASL = HEADER_SASL + frame(performatives.performative(0x41, symbol("ANONYMOUS"), NULL, NULL), frame_type=TYPE_SASL)
BEGIN = frame(performatives.performative(0x11, NULL, uint(0), uint(5_000), uint(5_000)))
CLOSE = frame(performatives.performative(0x18, NULL))
END = frame(performatives.performative(0x17, NULL))
BODY = described(0x75, binary(b"body"))


def opening(*, frame_size_max_bytes: int = 65_536, idle_timeout_ms: int | None = None) -> bytes:
    """Everything up to a session on channel 0."""
    idle = NULL if idle_timeout_ms is None else uint(idle_timeout_ms)
    body = performatives.performative(
        0x10, string("test"), string("localhost"), uint(frame_size_max_bytes), ushort(10), idle
    )
    return SASL + HEADER_AMQP + frame(body) + BEGIN


def attach(address: str, handle: int, *, receiver: bool, snd_settle_mode: int = 0, filters: bytes = NULL) -> bytes:
    source = described(0x28, list_([string(address) if receiver else string("c"), *([NULL] * 6), filters]))
    target = described(0x29, list_([string("c") if receiver else string(address)]))
    return frame(
        performatives.performative(
            0x12, string(f"link-{handle}"), uint(handle), TRUE if receiver else FALSE, types.ubyte(snd_settle_mode),
            types.ubyte(1), source, target, NULL, FALSE, NULL if receiver else uint(0), NULL, NULL, NULL, map_(()),
        )
    )  # fmt: skip


def flow(handle: int, credit: int, *, window: int = 5_000, drain: bool = False, echo: bool = False) -> bytes:
    return frame(
        performatives.performative(
            0x13, uint(0), uint(window), uint(0), uint(window), uint(handle), uint(0), uint(credit), NULL,
            types.boolean(drain), types.boolean(echo),
        )
    )  # fmt: skip


def transfer(
    handle: int,
    delivery_id: int,
    payload: bytes,
    *,
    more: bool = False,
    aborted: bool = False,
    message_format: int = 0,
    settled: bool | None = False,
) -> bytes:
    ending = (NULL, NULL, FALSE, TRUE) if aborted else ()
    is_settled = NULL if settled is None else types.boolean(settled)
    body = performatives.performative(
        0x14, uint(handle), uint(delivery_id), binary(b"tag"), uint(message_format), is_settled, types.boolean(more),
        *ending,
    )  # fmt: skip
    return frame(body + payload)


def disposition(first: int, last: int, state: bytes, *, settled: bool = False) -> bytes:
    return frame(performatives.performative(0x15, TRUE, uint(first), uint(last), types.boolean(settled), state))


def detach(handle: int) -> bytes:
    return frame(performatives.performative(0x16, uint(handle), TRUE, NULL))


def frames_of(data: bytes) -> list[tuple[int, list[object], bytes]]:
    """What a server sent: code, fields and payload of each frame, without the protocol headers."""
    found: list[tuple[int, list[object], bytes]] = []
    at = 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            at += 8
            continue
        size = int.from_bytes(data[at : at + 4], "big")
        if size > 8:
            fields, end = types.decode_fields(data, at + 11, at + size)
            found.append((data[at + 10], fields, data[end : at + size]))
        at += size
    return found
