"""Bicep files as syntax trees: what each declares, and where one does not parse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import tree_sitter_bicep
from tree_sitter import Language, Node, Parser

FILE_BYTES_MAX = 1 << 18
KINDS = {
    "parameter_declaration": "param",
    "variable_declaration": "var",
    "resource_declaration": "resource",
    "module_declaration": "module",
    "output_declaration": "output",
}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something wrong, and where."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Declaration:
    """A parameter, variable, resource, module or output.

    `type` is what is written behind the name: a type, `Namespace/type@version`, or a module's path.  `outer` is the
    resource that this one stands in.
    """

    kind: str
    name: str
    type: str
    node: Node
    value: Node | None
    decorators: tuple[Node, ...] = ()
    outer: str = ""
    is_existing: bool = False

    @property
    def line(self) -> int:
        return line_of(self.node)


@dataclass(frozen=True, slots=True)
class BicepFile:
    """One file: its tree, what it declares in order, and its path below the folder that is checked."""

    path: str
    tree: Node
    declarations: tuple[Declaration, ...]

    def of(self, *kinds: str) -> list[Declaration]:
        """Declarations of some kinds."""
        return [found for found in self.declarations if found.kind in kinds]

    def find(self, kind: str, name: str) -> Declaration | None:
        """A declaration by its name."""
        return next((found for found in self.of(kind) if found.name == name), None)


def parse(path: Path, root: Path) -> BicepFile:
    """Read a file; one that does not parse declares what could be made out."""
    data = path.read_bytes()
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"{path} has {len(data)} bytes, above {FILE_BYTES_MAX}; split it into modules")
    tree = Parser(Language(tree_sitter_bicep.language())).parse(data).root_node
    return BicepFile(path.relative_to(root).as_posix(), tree, tuple(_declarations(tree)))


def check_syntax(file: BicepFile) -> Iterator[Finding]:
    """Where the grammar does not follow."""
    for node in walk(file.tree):
        if node.is_missing:
            yield Finding(file.path, line_of(node), f"{node.type!r} is missing")
        elif node.is_error:
            source = " ".join(text(node).split())[:60]
            yield Finding(file.path, line_of(node), f"cannot be read: {source}")


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield node
    for child in node.children:
        yield from walk(child)


def above(node: Node) -> Iterator[Node]:
    """The nodes that a node stands in, the nearest first."""
    while node.parent is not None:
        node = node.parent
        yield node


def named(node: Node) -> list[Node]:
    """The children that mean something."""
    return [child for child in node.named_children if child.type != "comment"]


def text(node: Node) -> str:
    """The source of a node."""
    return (node.text or b"").decode()


def hint(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """What somebody may have meant by a name that is not known; empty where nothing is near."""
    near = get_close_matches(name, known, 1, cutoff)
    return f" (did you mean {near[0]}?)" if near else ""


def line_of(node: Node) -> int:
    """The line on which a node begins, from 1."""
    return node.start_point[0] + 1


def literal(node: Node) -> str | None:
    """The text of a string without interpolation; None for anything else."""
    if node.type != "string" or any(child.type == "interpolation" for child in node.children):
        return None
    return "".join(_UNESCAPED.get(text(child), text(child)) for child in named(node))


_UNESCAPED = {"\\'": "'", "\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\t": "\t", "\\$": "$"}


def _declarations(tree: Node) -> Iterator[Declaration]:
    decorators: list[Node] = []
    for child in tree.children:
        if child.type == "decorators":
            decorators = named(child)
        elif child.type in KINDS:
            yield from _declared(child, tuple(decorators), "")
            decorators = []


def _declared(node: Node, decorators: tuple[Node, ...], outer: str) -> Iterator[Declaration]:
    signs = [index for index, child in enumerate(node.children) if child.type == "="]
    head = node.children[: signs[0]] if signs else node.children
    behind = node.children[signs[0] + 1 :] if signs else []
    value = next((child for child in behind if child.is_named and child.type != "comment"), None)
    names = [child for child in head if child.type == "identifier"]
    if not names:
        return
    kinds = [child for child in head if child.type in ("string", "type")]
    kind_text = (literal(kinds[0]) or text(kinds[0])) if kinds else ""
    is_existing = any(child.type == "existing" for child in head)
    name = text(names[0])
    yield Declaration(KINDS[node.type], name, kind_text, node, value, decorators, outer, is_existing)
    if value is not None and node.type == "resource_declaration":
        for part in walk(value):
            holders = (one for one in above(part) if one.type == "resource_declaration")
            if part.type == "resource_declaration" and next(holders, None) == node:
                yield from _declared(part, (), name)
