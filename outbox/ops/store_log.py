"""Upkeep of a log, which only an engine has: a store and a bus refuse it, and say what there is instead."""

from __future__ import annotations

from typing import NoReturn

from outbox.errors import Refused
from outbox.ops.requests import Answers
from outbox.ops.store_site import StoreSite
from outbox.ops.values import Compact, Seal


async def compact(at: StoreSite, asked: Compact) -> NoReturn:
    """Refuse it.

    Raises:
        Refused: always.
    """
    raise Refused("compact works on an engine's folder, by --data; there is no log")


async def seal(at: StoreSite, asked: Seal) -> NoReturn:
    """Refuse it.

    Raises:
        Refused: always.
    """
    raise Refused("backup works on an engine's folder, by --data; Cosmos DB and Service Bus have backups of their own")


ANSWERS: Answers = {Compact: compact, Seal: seal}
