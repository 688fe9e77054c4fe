"""Which faults of the tables a run plants: one of each rule that a page names, and a twelfth of the others.

A planted fault says something about the tests, not about the code, and little of it changes from one commit to the
next.  Which they are follows from the sources of the package: a tree draws the same faults whenever it is tested, and
the next change to the code draws others.  `make soak` plants the rest; `pytest -m ""` plants all.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import blake2b

from tests.simulation.importing import ROOT
from tests.simulation.planting import Mutant
from tests.simulation.rules import RULES

ONE_OF = 12


def is_drawn(mutant: Mutant) -> bool:
    """Whether a run of this tree plants a fault."""
    return mutant.name in of_rules(tree_digest()) or place_of(mutant.name, tree_digest()) % ONE_OF == 0


def place_of(name: str, tree: bytes) -> int:
    """The place of a fault among all in a tree: as if drawn, and the same each time."""
    return int.from_bytes(blake2b(name.encode(), key=tree, digest_size=8).digest())


@cache
def of_rules(tree: bytes) -> frozenset[str]:
    """Of each rule that a page of the protocol names, the fault that a tree plants for it."""
    return frozenset(min(rule.faults, key=lambda name: place_of(name, tree)) for rule in RULES)


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
