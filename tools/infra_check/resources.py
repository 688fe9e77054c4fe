"""Every resource against its model: members, values, kinds, what only the service writes, what must be there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tree_sitter import Node

from tools.infra_check.models import Member, Shape
from tools.infra_check.project import Project, Resource
from tools.infra_check.resource_types import GROUPS, MODELS, shapes_of, versions_of
from tools.infra_check.syntax import BicepFile, Finding, hint, line_of, named, text, walk
from tools.infra_check.values import Choice, Members, Unknown

BICEPS_OWN = ("name", "parent", "scope", "dependsOn")
_FORM = re.compile(r"Microsoft\.\w+(?:/\w+)+")
_VERSION = re.compile(r"20\d\d-[01]\d-[0-3]\d")
_DURATION = re.compile(r"P(?=.)(?:\d+D)?(?:T(?=.)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?")
_FITS = {"string": ("string", "duration"), "int": ("int", "number"), "bool": ("bool",), "array": ("array",)}


def check_resources(project: Project) -> Iterator[Finding]:
    """All resources of all files, and what other expressions ask of them."""
    versions: dict[str, tuple[str, str]] = {}
    for file in project.files.values():
        found = project.resources(project.values(file))
        for resource in found:
            yield from _check_type(resource, versions)
            yield from _check_bodies(resource)
        yield from _check_uses(file, {resource.declared.name: resource.type for resource in found})


def _check_type(resource: Resource, versions: dict[str, tuple[str, str]]) -> Iterator[Finding]:
    """The form of a type, its version, and that one type has one version everywhere."""

    def finding(fault: str) -> Finding:
        return Finding(resource.file.path, resource.declared.line, f"{resource.declared.name}: {fault}")

    if not _FORM.fullmatch(resource.type):
        yield finding(f"{resource.type!r} is not a resource type")
        return
    if not _VERSION.fullmatch(resource.version):
        yield finding(f"API version {resource.version!r} is not a stable one (YYYY-MM-DD)")
        return
    first, where = versions.setdefault(resource.type, (resource.version, resource.file.path))
    if first != resource.version:
        yield finding(f"API version {resource.version}, but {first} in {where}")
    if shapes_of(resource.type) is None:
        near = hint(resource.type, (GROUPS, *MODELS))
        yield finding(f"no model of {resource.type} is known{near}; add it to resource_types.py")
        return
    described = versions_of(resource.type)
    if not {resource.version, f"{resource.version}-preview"} & described:
        yield finding(
            f"API version {resource.version} is not the one that its model describes ({', '.join(sorted(described))})"
        )


def _check_bodies(resource: Resource) -> Iterator[Finding]:
    shapes, depth = shapes_of(resource.type), resource.type.count("/") - 1
    for body in resource.bodies:
        if not isinstance(body, Members):
            yield Finding(resource.file.path, resource.declared.line, f"{resource.declared.name}: has no body")
            continue
        place = Place(resource.file.path, resource.declared.line, resource.declared.name)
        if "name" not in body:
            yield place.finding("has no name")
        name = body.get("name")
        slash_count = name.slash_count if isinstance(name, Unknown) else str(name).count("/")
        if not resource.declared.outer and "parent" not in body and slash_count != depth:
            yield place.finding("stands in another resource, and names no parent")
        if resource.declared.is_existing:
            for key in body.keys() - set(BICEPS_OWN):
                yield place.at(body, key).finding(f"{key} of an existing resource cannot be set")
        elif shapes is not None:
            described = Members()
            described.lines = body.lines
            described.update({key: value for key, value in body.items() if key not in BICEPS_OWN})
            yield from _check_members(described, shapes[0], place)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: file, line, and the way to it."""

    path: str
    line: int
    way: str

    def at(self, holder: Any, key: str) -> Place:
        """The place of a member; what was loaded from a file has no line of its own."""
        line = holder.lines.get(key, self.line) if isinstance(holder, Members) else self.line
        return Place(self.path, line, f"{self.way}.{key}")

    def finding(self, fault: str) -> Finding:
        return Finding(self.path, self.line, f"{self.way}: {fault}")


def check_value(value: Any, member: Member, place: Place) -> Iterator[Finding]:
    """A value against what may stand there."""
    if value is None or member.kind == "any":
        return
    if isinstance(value, Choice):
        for option in value.options:
            yield from check_value(option, member, place)
    elif isinstance(value, Unknown):
        if value.type in _FITS and member.kind not in _FITS[value.type]:
            yield place.finding(f"takes {member.kind}, not {value.type}")
    elif isinstance(value, dict):
        yield from _check_object(value, member, place)
    elif isinstance(value, list):
        if member.kind != "array" or member.item is None:
            yield place.finding(f"takes {member.kind}, not an array")
            return
        for index, item in enumerate(value):
            yield from check_value(item, member.item, Place(place.path, place.line, f"{place.way}[{index}]"))
    else:
        yield from _check_scalar(value, member, place)


def _check_scalar(value: str | int | bool, member: Member, place: Place) -> Iterator[Finding]:
    kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"
    if member.kind not in _FITS[kind]:
        yield place.finding(f"takes {member.kind}, not {value!r}")
    elif member.kind == "duration" and not _DURATION.fullmatch(str(value)):
        yield place.finding(f"takes an ISO 8601 duration such as PT1M, not {value!r}")
    elif member.choices and value not in member.choices:
        yield place.finding(f"does not take {value!r}{hint(str(value), member.choices)}")


def _check_object(value: dict[str, Any], member: Member, place: Place) -> Iterator[Finding]:
    if member.kind == "map" and member.item is not None:
        for key, inner in value.items():
            yield from check_value(inner, member.item, place.at(value, key))
        return
    if member.kind != "object" or member.inner is None:
        yield place.finding(f"takes {member.kind}, not an object")
        return
    shape = member.inner()
    if shape.discriminator:
        told = value.get(shape.discriminator)
        if not isinstance(told, str) or told not in shape.variants:
            yield place.finding(f"{shape.discriminator} {told!r} is none of {', '.join(sorted(shape.variants))}")
            return
        shape = shape.variants[told]()
    yield from _check_members(value, shape, place)


def _check_members(value: dict[str, Any], shape: Shape, place: Place) -> Iterator[Finding]:
    for key, inner in value.items():
        found, there = shape.members.get(key), place.at(value, key)
        if found is None:
            yield there.finding(f"{shape.name} has no such member{hint(key, shape.members, 0.5)}")
        elif found.is_read_only:
            yield there.finding("is written by the service only")
        else:
            yield from check_value(inner, found, there)
    for key, found in shape.members.items():
        if found.is_required and key not in value:
            yield place.finding(f"{key} is missing")


# What expressions ask of resources


def _check_uses(file: BicepFile, types: dict[str, str]) -> Iterator[Finding]:
    """`account.properties.x`: x must be something that the resource tells."""
    for node in walk(file.tree):
        if node.type != "member_expression" or (node.parent is not None and node.parent.type == "member_expression"):
            continue
        way = _way(node)
        if way and way[0] in types:
            yield from _check_way(file, node, way, types[way[0]])


def _way(node: Node) -> list[str]:
    """The names of `a.b.c`; empty where it does not begin with a plain name."""
    if node.type == "identifier":
        return [text(node)]
    whole, *_, last = named(node)
    inner = _way(whole) if whole.type in ("identifier", "member_expression") else []
    return [*inner, text(last)] if inner and last.type == "property_identifier" else []


def _check_way(file: BicepFile, node: Node, way: list[str], kind: str) -> Iterator[Finding]:
    shapes = shapes_of(kind)
    if shapes is None or way[1] in ("id", "name", "type"):
        return
    shape: Shape | None = shapes[1]
    for name in way[1:]:
        if shape is None:
            return
        member = shape.members.get(name)
        if member is None:
            near = hint(name, shape.members, 0.5)
            yield Finding(file.path, line_of(node), f"{'.'.join(way)}: {way[0]} tells no {name}{near}")
            return
        shape = member.inner() if member.inner is not None else None
