"""Which faults of the tables a run plants: all that take out a rule by name, and a sixth of the others.

A planted fault says something about the tests, not about the code, and little of it changes from one commit to the
next.  Which sixth it is follows from the sources of the package: a tree draws the same faults whenever it is tested,
and the next change to the code draws others.  `make soak` plants the rest; `pytest -m ""` plants all.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import blake2b

from tests.simulation.importing import ROOT
from tests.simulation.planting import Mutant
from tests.simulation.rules import RULES

ONE_OF = 6


def is_drawn(mutant: Mutant) -> bool:
    """Whether a run of this tree plants a fault."""
    return mutant.name in of_rules() or number_of(mutant.name, tree_digest()) == 0


def number_of(name: str, tree: bytes) -> int:
    """To which of the sixths of a tree a fault belongs."""
    return int.from_bytes(blake2b(name.encode(), key=tree, digest_size=8).digest()) % ONE_OF


@cache
def of_rules() -> frozenset[str]:
    """The faults that take out a rule that a page of the protocol names."""
    return frozenset(name for rule in RULES for name in rule.faults)


@cache
def tree_digest() -> bytes:
    """What all sources of the package come to."""
    return digest_of(path.read_bytes() for path in sorted((ROOT / "outbox").rglob("*.py")))


def digest_of(texts: Iterable[bytes]) -> bytes:
    """What these files come to, in this order."""
    whole = blake2b(digest_size=16)
    for text in texts:
        whole.update(blake2b(text, digest_size=16).digest())
    return whole.digest()
