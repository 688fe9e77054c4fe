"""Theorem 1 of the FlameStream paper over a recorded run: what leaves must not depend on what could still be lost.

For every output y and every result z that y was computed from, at whatever distance: unless z's operator commutes or
its order is enforced, z must be recoverable before y leaves.  Otherwise a failure between the two makes z anew, perhaps
in another order, and a second output contradicts the first.

What counts as recoverable is the recorder's word, under the failures that it declared: a snapshot that holds z, an
outbox record, a synced log, a determinant that another process keeps.  For commits of the runtime the rule needs no
such events: their outputs leave after their answer (`linear`, `flow`).

Linear in results and their parents: a result all of whose past is safe is never looked behind again, and an unsafe one
is reported once.
"""

from __future__ import annotations

from outbox.verify.recorded.events import Durable, Left, Result
from outbox.verify.recorded.verdict import EXACTLY_ONCE, RECOVERABLE, Findings

BREAKS = (RECOVERABLE, EXACTLY_ONCE)


class Node:
    """A result: what it was computed from, and whether losing it could show."""

    __slots__ = ("is_safe", "line", "parents")

    def __init__(self, parents: tuple[str, ...], is_safe: bool, line: int) -> None:
        self.parents = parents
        self.is_safe = is_safe
        self.line = line


class Recoverability:
    """Results of one history, and what left."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._nodes: dict[str, Node] = {}

    def result(self, result: Result, line: int) -> None:
        """An operator made something."""
        safe = result.is_commutative or result.is_ordered
        self._nodes[result.id] = Node(tuple(result.parents), safe, line)

    def durable(self, durable: Durable) -> None:
        """It can be recovered from here on."""
        node = self._nodes.get(durable.id)
        if node is not None:
            node.is_safe = True

    def left(self, left: Left, line: int) -> None:
        """Something that depends on results left the system."""
        todo = list(left.parents)
        path: set[str] = set()
        while todo:
            id = todo[-1]
            node = self._nodes.get(id)
            if node is None or id in path:
                todo.pop()
                if node is not None and not any(self._is_open(parent) for parent in node.parents):
                    node.parents = ()  # all its past is safe: never to be looked behind again
                continue
            path.add(id)
            if not node.is_safe:
                text = (
                    f"output {left.id} left while result {id} of line {node.line}, on which it depends, could be lost"
                )
                self._findings.add(line, "left early", text, BREAKS, left.id, id, against=node.line)
                node.is_safe = True  # said once
            todo += [parent for parent in node.parents if parent not in path]

    def _is_open(self, id: str) -> bool:
        node = self._nodes.get(id)
        return node is not None and (not node.is_safe or bool(node.parents))
