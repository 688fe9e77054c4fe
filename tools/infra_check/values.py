"""What the expressions of a Bicep file come to, as far as that can be known before a deployment.

A parameter, an output of a module, or what a resource tells of itself is `Unknown`, with the type that it will have.  A
condition that is not known makes a `Choice`.  Objects keep the line of each member, so that a fault has a place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tree_sitter import Node

from tools.infra_check.syntax import BicepFile, Finding, line_of, literal, named, text

LOADED_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that a deployment decides; its type if that is known, and the slashes that stand in a text for sure."""

    type: str = "any"
    slash_count: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values."""

    options: tuple[Any, ...]


class Members(dict[str, Any]):
    """An object of the source: its members, and the line of each."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


FUNCTIONS: dict[str, str] = {
    "any": "any",
    "concat": "any",
    "contains": "bool",
    "deployment": "object",
    "empty": "bool",
    "environment": "object",
    "filter": "array",
    "first": "any",
    "flatten": "array",
    "format": "string",
    "guid": "string",
    "items": "array",
    "join": "string",
    "json": "any",
    "last": "any",
    "length": "int",
    "loadJsonContent": "any",
    "loadTextContent": "string",
    "map": "array",
    "max": "int",
    "min": "int",
    "range": "array",
    "replace": "string",
    "resourceGroup": "object",
    "resourceId": "string",
    "sort": "array",
    "split": "array",
    "string": "string",
    "subscription": "object",
    "subscriptionResourceId": "string",
    "substring": "string",
    "take": "any",
    "tenant": "object",
    "tenantResourceId": "string",
    "toLower": "string",
    "toObject": "object",
    "toUpper": "string",
    "union": "any",
    "uniqueString": "string",
    "uri": "string",
}
"""Functions of Bicep and the type of what they give.  `listKeys` and its kind are left out: they give keys."""


@dataclass(slots=True)
class Values:
    """The values of one file's expressions; `given` are parameters that are known."""

    file: BicepFile
    root: Path
    output_types: Mapping[str, Mapping[str, str]]
    """Of each module symbol, the types of its outputs."""
    given: Mapping[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    _known: dict[str, Any] = field(default_factory=dict)

    def symbol(self, name: str) -> Any:
        """What a declared name stands for."""
        if name not in self._known:
            self._known[name] = Unknown()  # a name that needs itself comes to nothing
            inputs = self.file.of("param", "var", "resource", "module")
            found = next((declared for declared in inputs if declared.name == name), None)
            if found is not None and found.kind == "var" and found.value is not None:
                self._known[name] = self.of(found.value)
            elif found is not None and found.kind == "param":
                self._known[name] = self.given.get(name, Unknown(plain_type(found.type)))
            elif found is not None:
                self._known[name] = Unknown(f"{found.kind} {name}")
        return self._known[name]

    def of(self, node: Node, local: Mapping[str, Any] | None = None) -> Any:
        """What an expression comes to; `local` are variables of loops and lambdas."""
        evaluate = _BY_TYPE.get(node.type)
        return evaluate(self, node, local or {}) if evaluate else Unknown()

    def note(self, node: Node, fault: str) -> Unknown:
        """Keep what is wrong, and go on without a value."""
        found = Finding(self.file.path, line_of(node), fault)
        if found not in self.findings:
            self.findings.append(found)
        return Unknown()

    def load(self, node: Node, arguments: list[Node]) -> str | None:
        """The text of a file that a template reads when it is compiled."""
        name = literal(arguments[0]) if arguments else None
        if name is None:
            self.note(node, "the file to load must be named by plain text")
            return None
        place = (self.root / self.file.path).parent / name
        if not place.is_file():
            self.note(node, f"file {name} is not there")
            return None
        if place.stat().st_size > LOADED_BYTES_MAX:
            self.note(node, f"file {name} is over {LOADED_BYTES_MAX} bytes")
            return None
        return place.read_text(encoding="utf-8")


def plain_type(written: str) -> str:
    """The kind of value that a written type takes."""
    if written.endswith("[]"):
        return "array"
    return written if written in ("string", "int", "bool", "object", "array") else "any"


def type_of(value: Any) -> str:
    """The kind of a value."""
    if isinstance(value, Unknown):
        return value.type
    kinds = ((bool, "bool"), (int, "int"), (str, "string"), (list, "array"), (dict, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "any")


def options_of(value: Any) -> tuple[Any, ...]:
    """The values that a value may have."""
    return value.options if isinstance(value, Choice) else (value,)


def _string(values: Values, node: Node, local: Mapping[str, Any]) -> Any:
    plain = literal(node)
    if plain is not None:
        return plain
    parts = [
        values.of(named(child)[0], local) if child.type == "interpolation" else text(child) for child in named(node)
    ]
    if any(isinstance(part, Unknown | Choice) for part in parts):
        return Unknown("string", sum(part.count("/") for part in parts if isinstance(part, str)))
    return "".join(map(str, parts))


def _object(values: Values, node: Node, local: Mapping[str, Any]) -> Members:
    made = Members()
    for child in named(node):
        parts = named(child)
        if child.type != "object_property" or len(parts) < 2:
            continue
        key = text(parts[0]) if parts[0].type == "identifier" else values.of(parts[0], local)
        if not isinstance(key, str):
            key = "*"  # a name that the deployment decides
        elif key in made:
            values.note(parts[0], f"member {key} is there twice")
        made[key] = values.of(parts[1], local)
        made.lines[key] = line_of(parts[0])
    return made


def _member(values: Values, node: Node, local: Mapping[str, Any]) -> Any:
    whole, *_, last = named(node)
    if last.type != "property_identifier":
        return Unknown()
    return _part(values, node, values.of(whole, local), text(last))


def _part(values: Values, node: Node, whole: Any, key: Any) -> Any:
    if isinstance(whole, dict) and isinstance(key, str):
        return whole[key] if key in whole else values.note(node, f"{key[:60]!r} is not a member of {text(node)}")
    if isinstance(whole, list) and type(key) is int:
        return whole[key] if key < len(whole) else values.note(node, f"{text(node)}: there are {len(whole)} only")
    kind, _, name = whole.type.partition(" ") if isinstance(whole, Unknown) else ("", "", "")
    if kind == "module" and key == "outputs":
        return Unknown(f"outputs {name}")
    if kind == "outputs":
        types = values.output_types.get(name, {})
        return Unknown(types[key]) if key in types else values.note(node, f"module {name} has no output {key}")
    if kind == "resource" and key in ("id", "name", "type"):
        return Unknown("string")
    return Unknown()


def _call(values: Values, node: Node, local: Mapping[str, Any]) -> Any:
    name = text(named(node)[0])
    arguments = [part for child in named(node)[1:] if child.type == "arguments" for part in named(child)]
    if name == "loadJsonContent":
        loaded = values.load(node, arguments)
        try:
            return Unknown() if loaded is None else json.loads(loaded)
        except (ValueError, RecursionError) as error:
            return values.note(node, f"{text(arguments[0])} is not JSON: {error}")
    if name == "loadTextContent":
        loaded = values.load(node, arguments)
        return Unknown("string") if loaded is None else loaded
    if name == "map" and len(arguments) == 2:
        items = values.of(arguments[0], local)
        is_known = isinstance(items, list)
        return [_applied(values, arguments[1], item, local) for item in items] if is_known else Unknown("array")
    given = [values.of(argument, local) for argument in arguments]
    if name == "any" and given:
        return given[0]
    if name == "flatten" and given and isinstance(given[0], list) and all(isinstance(part, list) for part in given[0]):
        return [item for part in given[0] for item in part]
    if name == "empty" and given and isinstance(given[0], str | list | dict):
        return not given[0]
    if name == "union" and any(isinstance(value, dict) for value in given):
        return _united([value for value in given if isinstance(value, dict)])
    if name == "toLower" and given and isinstance(given[0], str):
        return given[0].lower()
    return Unknown(FUNCTIONS.get(name, "any"))


def _united(parts: list[Any]) -> Members:
    """What is known of several objects as one."""
    made = Members()
    for part in parts:
        made.update(part)
        made.lines.update(part.lines if isinstance(part, Members) else {})
    return made


def _applied(values: Values, node: Node, item: Any, local: Mapping[str, Any]) -> Any:
    """A lambda of one variable for one item.  The grammar takes `x => x.a` for a member `a` of the lambda `x => x`."""
    if node.type == "lambda_expression":
        variable, body = named(node)
        return values.of(body, {**local, text(variable): item})
    if node.type == "member_expression":
        whole, *_, last = named(node)
        return _part(values, node, _applied(values, whole, item, local), text(last))
    return Unknown()


def _ternary(values: Values, node: Node, local: Mapping[str, Any]) -> Any:
    condition, left, right = named(node)
    known = values.of(condition, local)
    if isinstance(known, bool):
        return values.of(left if known else right, local)
    return Choice((*options_of(values.of(left, local)), *options_of(values.of(right, local))))


def _unary(values: Values, node: Node, local: Mapping[str, Any]) -> Any:
    value = values.of(named(node)[0], local)
    sign = text(node.children[0])
    if sign == "!":
        return not value if isinstance(value, bool) else Unknown("bool")
    return -value if sign == "-" and type(value) is int else Unknown("int")


def _binary(values: Values, node: Node, local: Mapping[str, Any]) -> Any:
    left, right = (values.of(part, local) for part in named(node))
    sign = text(node.children[1])
    if any(isinstance(part, Unknown | Choice) for part in (left, right)):
        return Unknown("int" if sign in ("+", "-", "*", "/", "%") else "any" if sign == "??" else "bool")
    compare = _COMPARISONS.get(sign)
    return compare(left, right) if compare else Unknown()


def _loop(values: Values, node: Node, local: Mapping[str, Any]) -> list[Any]:
    """Each round of a loop; one round with an unknown variable where its list is not known."""
    variables, items, body = loop_parts(node)
    known = values.of(items, local)
    rounds = known if isinstance(known, list) else [Unknown()]
    return [
        values.of(body, {**local, **dict(zip(variables, (item, at), strict=False))}) for at, item in enumerate(rounds)
    ]


def loop_parts(node: Node) -> tuple[list[str], Node, Node]:
    """The variables of a loop, what it goes over, and its body."""
    head, items, *_, body = named(node)
    variables = [text(head)] if head.type == "identifier" else [text(part) for part in named(head)]
    return variables, items, body


_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "&&": lambda left, right: left and right,
    "||": lambda left, right: left or right,
    "??": lambda left, right: right if left is None else left,
}
_BY_TYPE: dict[str, Callable[[Values, Node, Mapping[str, Any]], Any]] = {
    "string": _string,
    "number": lambda values, node, local: int(text(node)),
    "boolean": lambda values, node, local: text(node) == "true",
    "null": lambda values, node, local: None,
    "object": _object,
    "array": lambda values, node, local: [values.of(child, local) for child in named(node)],
    "identifier": lambda values, node, local: local[name] if (name := text(node)) in local else values.symbol(name),
    "member_expression": _member,
    "subscript_expression": lambda values, node, local: _part(
        values, node, values.of(named(node)[0], local), values.of(named(node)[-1], local)
    ),
    "call_expression": _call,
    "ternary_expression": _ternary,
    "unary_expression": _unary,
    "binary_expression": _binary,
    "parenthesized_expression": lambda values, node, local: values.of(named(node)[0], local),
    "if_statement": lambda values, node, local: values.of(named(node)[-1], local),
    "for_statement": _loop,
}
