"""Provisioned throughput: the offers that clients read and replace.  Nothing is throttled by it.

A container has an offer of its own unless it shares its database's; one that was created without either has the
service's least.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from outbox.emulator.cosmos.wire import Json, Rejection, bad, parse_object

THROUGHPUT_HEADER = "x-ms-offer-throughput"
AUTOSCALE_HEADER = "x-ms-cosmos-offer-autopilot-settings"

_Percent = Annotated[int, msgspec.Meta(ge=0, le=1_000)]
_Manual = Annotated[int, msgspec.Meta(ge=400, le=1_000_000, multiple_of=100)]
_Greatest = Annotated[int, msgspec.Meta(ge=1_000, le=1_000_000, multiple_of=1_000)]


class _ThroughputPolicy(msgspec.Struct, rename="camel"):
    increment_percent: _Percent = 0


class _UpgradePolicy(msgspec.Struct, rename="camel"):
    throughput_policy: _ThroughputPolicy


class _Autoscale(msgspec.Struct, rename="camel", omit_defaults=True):
    max_throughput: _Greatest
    auto_upgrade_policy: _UpgradePolicy | None = None


class Throughput(msgspec.Struct, rename="camel", omit_defaults=True):
    """Request units per second: a number, or the greatest up to which the service would scale."""

    offer_throughput: _Manual | None = None
    offer_autopilot_settings: _Autoscale | None = None


LEAST = Throughput(400)


def of_headers(headers: Mapping[str, str]) -> Throughput | None:
    """The throughput with which a database or a container is created, None where the request names none.

    Raises:
        Rejection: 400, it is no number that the service takes.
    """
    number, autoscale = headers.get(THROUGHPUT_HEADER, ""), headers.get(AUTOSCALE_HEADER, "")
    if not number and not autoscale:
        return None
    if number and autoscale:
        raise bad("a throughput is a number or scales by itself; give one of both")
    if autoscale:
        settings = parse_object(autoscale.encode("utf-8", "replace"), f"the header {AUTOSCALE_HEADER}")
        return _checked({"offerAutopilotSettings": settings})
    if not number.isascii() or not number.isdecimal() or len(number) > 10:
        raise bad(f"the throughput {number[:40]!r} is no whole number")
    return _checked({"offerThroughput": int(number)})


def of_body(body: dict[str, Json]) -> Throughput:
    """The throughput in an offer that is to replace another.

    Raises:
        Rejection: 400, it has none that the service takes.
    """
    content = body.get("content")
    found = _checked(content if isinstance(content, dict) else {})
    if found.offer_autopilot_settings is not None:
        found.offer_throughput = None
    elif found.offer_throughput is None:
        raise bad("an offer needs content.offerThroughput or content.offerAutopilotSettings")
    return found


def _checked(content: dict[str, Json]) -> Throughput:
    try:
        return msgspec.convert(content, Throughput)
    except msgspec.ValidationError as error:
        raise bad(f"the throughput is none that can be provisioned: {error}") from error


def of_stored(content: Json) -> Throughput | None:
    """The same of a definition from disk; None where it has none, or one that was never checked."""
    try:
        return None if content is None else _checked(content)
    except Rejection:
        return None


def offer_of(rid: str, offer_rid: str, link: str, throughput: Throughput, etag: str, ts_s: int) -> dict[str, Json]:
    """The offer of the database or container with a resource id and a link, as clients read it."""
    content = msgspec.to_builtins(throughput)
    if throughput.offer_autopilot_settings is not None:
        content["offerThroughput"] = throughput.offer_autopilot_settings.max_throughput // 10
    return {
        "id": offer_rid,
        "_rid": offer_rid,
        "_self": f"offers/{offer_rid}/",
        "offerVersion": "V2",
        "offerType": "Invalid",
        "offerResourceId": rid,
        "resource": link,
        "content": content,
        "_etag": etag,
        "_ts": ts_s,
    }
