"""The shapes of resources, read from the models of the azure-mgmt packages.

Two generations of generated code are read: one keeps wire names in `_attribute_map` and names enums in its docstrings
only, the other keeps fields and annotations.  Both come to a `Shape`: members by their names on the wire, each with its
kind, the values it takes, and whether only the service writes it.
"""

from __future__ import annotations

import datetime
import enum
import importlib
import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

_VARTYPE = re.compile(r":vartype (\w+): (?:str or )?(?:\w+ or )?~([\w.]+)")
_QUOTED_DOT = "\\."
_SIMPLE = {
    **{"str": "string", "int": "int", "long": "int", "bool": "bool", "float": "number", "object": "any"},
    **{"duration": "duration", "iso-8601": "string", "date": "string", "time": "string"},
}
_PLAIN: tuple[tuple[type, str], ...] = (  # the first that fits
    (datetime.timedelta, "duration"),
    *((kind, "string") for kind in (str, datetime.date, datetime.time)),
    *((bool, "bool"), (int, "int"), (float, "number")),
)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a shape.  `inner` gives the shape of an object, or of an array's or a map's items."""

    kind: str
    choices: frozenset[str] = frozenset()
    inner: Callable[[], Shape] | None = None
    item: Member | None = None
    is_read_only: bool = False
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """An object's members; of a polymorphic one, the shape for each value of the member that tells."""

    name: str
    members: Mapping[str, Member]
    discriminator: str = ""
    variants: Mapping[str, Callable[[], Shape]] = field(default_factory=dict)


ANY = Member("any")


def shape(module: str, name: str) -> Shape:
    """The shape of a model; a dotted name leads to a member's shape."""
    return of_class(getattr(importlib.import_module(module), name))


@cache
def of_class(model: type) -> Shape:
    """The shape of a model class of either generation."""
    return _older(model) if hasattr(model, "_attribute_map") else _newer(model)


# The older generation: msrest, and what was generated after its fashion


def _older(model: Any) -> Shape:
    tree: dict[str, Any] = {}
    enums = {name: pkgutil.resolve_name(path) for name, path in _VARTYPE.findall(model.__doc__ or "")}
    for attribute, entry in model._attribute_map.items():
        if not entry["key"]:
            continue  # whatever else comes: our own templates have no use for it
        rules = model._validation.get(attribute, {})
        member = _older_member(model, entry["type"], enums.get(attribute))
        flags = {"is_read_only": bool(rules.get("readonly")), "is_required": bool(rules.get("required"))}
        path = [part.replace("\0", ".") for part in entry["key"].replace(_QUOTED_DOT, "\0").split(".")]
        inside = tree
        for part in path[:-1]:
            inside = inside.setdefault(part, {})
        inside[path[-1]] = Member(member.kind, member.choices, member.inner, member.item, **flags)
    variants: dict[str, Callable[[], Shape]] = {}
    discriminator = ""
    for attribute, names in getattr(model, "_subtype_map", {}).items():
        discriminator = model._attribute_map[attribute]["key"].replace(_QUOTED_DOT, ".")
        variants = {value: partial(shape, model.__module__, name) for value, name in names.items()}
    return Shape(model.__name__, _nested(model.__name__, tree), discriminator, variants)


def _nested(name: str, tree: dict[str, Any]) -> dict[str, Member]:
    """Members that the model keeps flat, as the objects that the wire has."""
    members: dict[str, Member] = {}
    for key, part in tree.items():
        way = f"{name}.{key}"
        is_flat = isinstance(part, dict)
        members[key] = Member("object", inner=partial(Shape, way, _nested(way, part))) if is_flat else part
    return members


def _older_member(model: Any, kind: str, enumeration: type | None) -> Member:
    if kind[0] in "[{":
        return Member("array" if kind[0] == "[" else "map", item=_older_member(model, kind[1:-1], enumeration))
    if kind in _SIMPLE:
        return Member(_SIMPLE[kind], _choices(enumeration) if kind == "str" else frozenset())
    found = getattr(importlib.import_module(model.__module__), kind, None)
    if found is None or not hasattr(found, "_attribute_map"):
        return ANY
    return Member("object", inner=partial(shape, model.__module__, kind))


def _choices(found: type | None) -> frozenset[str]:
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return frozenset(str(choice.value) for choice in found)
    return frozenset()


# The newer generation: fields and annotations


def _newer(model: Any) -> Shape:
    model.__new__(model)  # the first instance of a class collects its fields
    hints = _hints(model)
    members, discriminator = {}, ""
    for attribute, entry in model._attr_to_rest_field.items():
        found = _newer_member(hints.get(attribute))
        is_required = attribute in hints and type(None) not in typing.get_args(hints[attribute])
        is_read_only = entry._visibility == ["read"]
        flags = {"is_read_only": is_read_only, "is_required": is_required and not is_read_only}
        members[entry._rest_name] = Member(found.kind, found.choices, found.inner, found.item, **flags)
        if entry._is_discriminator:
            discriminator = entry._rest_name
    mapping = getattr(model, "__mapping__", {}) if discriminator else {}
    variants = {str(getattr(value, "value", value)): partial(of_class, kind) for value, kind in mapping.items()}
    return Shape(model.__name__, members, discriminator, variants)


def _hints(model: type) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for base in reversed(model.__mro__):
        if base.__module__.startswith("azure.mgmt"):
            package = importlib.import_module(base.__module__.rpartition(".")[0])
            names = {**vars(importlib.import_module(base.__module__)), "_models": package, "datetime": datetime}
            hints |= {name: _resolved(hint, names) for name, hint in inspect.get_annotations(base).items()}
    return hints


def _resolved(hint: Any, names: dict[str, Any]) -> Any:
    holder = type("Holder", (), {"__annotations__": {"value": hint}})
    return typing.get_type_hints(holder, names)["value"]


def _newer_member(hint: Any) -> Member:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = [part for part in typing.get_args(hint) if part is not type(None)] if is_union else [hint]
    enums = frozenset[str]().union(*(_choices(part) for part in options))
    plain = [part for part in options if not (isinstance(part, type) and issubclass(part, enum.Enum))]
    if enums and plain in ([str], []):
        return Member("string", enums)
    if len(plain) != 1:
        return ANY
    origin, inside = typing.get_origin(plain[0]), typing.get_args(plain[0])
    if origin is typing.Literal:
        return Member("string", frozenset(str(getattr(choice, "value", choice)) for choice in inside))
    if origin is list:
        return Member("array", item=_newer_member(inside[0]))
    if origin is dict:
        return Member("map", item=_newer_member(inside[1]))
    if not isinstance(plain[0], type):
        return ANY
    if hasattr(plain[0], "_is_model"):
        return Member("object", inner=partial(of_class, plain[0]))
    return next((Member(name) for kind, name in _PLAIN if issubclass(plain[0], kind)), ANY)
