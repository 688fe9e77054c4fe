"""Names as the compiler looks at them: declared once, known where they are used, used where they are declared.

Also modules (their files, parameters and outputs), decorators, scopes, and the parameters file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tree_sitter import Node

from tools.infra_check.project import MAIN, Project
from tools.infra_check.syntax import BicepFile, Declaration, Finding, above, hint, line_of, literal, named, text, walk
from tools.infra_check.values import FUNCTIONS, Unknown, Values, loop_parts, options_of, plain_type, type_of

PARAMETERS = "infra/main.parameters.json"
DECORATORS = frozenset(
    (
        "allowed",
        "batchSize",
        "description",
        "export",
        "maxLength",
        "maxValue",
        "metadata",
        "minLength",
        "minValue",
        "sealed",
        "secure",
    )
)
TYPES = frozenset(("string", "int", "bool", "object", "array"))
_VARIABLE = re.compile(r"\$\{(\w+)(?:=([^}]*))?\}")


def check_names(project: Project) -> Iterator[Finding]:
    """Every file by itself, and its modules."""
    for file in project.files.values():
        yield from _check_declarations(file)
        yield from _check_identifiers(file)
        yield from _check_unused(file)
        yield from _check_modules(project, file)
        yield from _check_values(project.values(file))
    yield from _check_reached(project)


def _check_values(values: Values) -> Iterator[Finding]:
    """What comes to light when every expression is worked out."""
    for declared in values.file.declarations:
        if declared.value is not None:
            found = values.of(declared.value)
            if declared.kind in ("param", "output"):
                yield from _check_typed(values.file, declared, found)
    yield from values.findings


def _check_typed(file: BicepFile, declared: Declaration, value: Any) -> Iterator[Finding]:
    wanted = plain_type(declared.type)
    for option in options_of(value):
        if not _fits(option, wanted):
            yield Finding(file.path, declared.line, f"{declared.name} is {wanted}, not {type_of(option)}")
    choices = allowed(declared)
    if choices and declared.kind == "param" and value not in choices:
        yield Finding(file.path, declared.line, f"default of {declared.name}, {value!r}, is not among the allowed")


def _fits(value: Any, wanted: str) -> bool:
    found = type_of(value)
    return wanted == "any" or found == wanted or found not in TYPES


def allowed(declared: Declaration) -> list[Any]:
    """The values that a parameter's decorator allows; empty where it has none."""
    for decorator in declared.decorators:
        call = named(decorator)[0]
        if text(named(call)[0]) == "allowed":
            arrays = [part for part in walk(call) if part.type == "array"]
            return [literal(item) or int(text(item)) for item in named(arrays[0])] if arrays else []
    return []


def _check_declarations(file: BicepFile) -> Iterator[Finding]:
    symbols = Counter(found.name for found in file.of("param", "var", "resource", "module"))
    symbols.update(f"output {found.name}" for found in file.of("output"))
    for name, count in symbols.items():
        if count > 1:
            yield Finding(file.path, 1, f"{name} is declared {count} times")
    for declared in file.declarations:
        for decorator in declared.decorators:
            name = text(named(named(decorator)[0])[0])
            if name not in DECORATORS:
                yield Finding(file.path, line_of(decorator), f"decorator {name} is not known")
        if declared.kind in ("param", "output") and declared.type.removesuffix("[]") not in TYPES:
            yield Finding(file.path, declared.line, f"{declared.name}: type {declared.type!r} is not known")
        if declared.kind != "param" and declared.value is None:
            yield Finding(file.path, declared.line, f"{declared.name} has no value")
    if scope_of(file) not in ("subscription", "resourceGroup"):
        yield Finding(file.path, 1, "targetScope is neither 'subscription' nor 'resourceGroup'")


def scope_of(file: BicepFile) -> str:
    """What a file is deployed to."""
    found = [node for node in file.tree.children if node.type == "target_scope_assignment"]
    return (literal(named(found[0])[0]) or "?") if found else "resourceGroup"


def _check_identifiers(file: BicepFile) -> Iterator[Finding]:
    known = {found.name for found in file.of("param", "var", "resource", "module")}
    for declared in file.declarations:
        if declared.value is not None and not declared.outer:
            for name, node in uses(declared.value, frozenset()):
                call = node.parent
                is_function = call is not None and call.type == "call_expression" and named(call)[0] == node
                if name not in known and not is_function:
                    yield Finding(file.path, line_of(node), f"{name} is not declared{hint(name, known)}")
    for node in walk(file.tree):
        if node.type == "call_expression" and not any(one.type == "decorator" for one in above(node)):
            name = text(named(node)[0])
            if name not in FUNCTIONS:
                yield Finding(file.path, line_of(node), f"function {name} is not known, or gives keys")


def uses(node: Node, local: frozenset[str]) -> Iterator[tuple[str, Node]]:
    """Names that an expression uses and does not bind itself."""
    if node.type == "identifier":
        if text(node) not in local:
            yield text(node), node
        return
    if node.type == "for_statement":
        variables, items, body = loop_parts(node)
        yield from uses(items, local)
        yield from uses(body, local | frozenset(variables))
        return
    if node.type == "lambda_expression":
        *bindings, body = named(node)
        bound = frozenset(text(part) for binding in bindings for part in walk(binding) if part.type == "identifier")
        yield from uses(body, local | bound)
        return
    if node.type == "resource_declaration":
        for child in named(node)[1:]:
            yield from uses(child, local) if child.type != "string" else ()
        return
    children = named(node)
    if node.type == "object_property" and children and children[0].type == "identifier":
        children = children[1:]  # a member's name, not a use
    for child in children:
        yield from uses(child, local)


def _check_unused(file: BicepFile) -> Iterator[Finding]:
    used = {
        name for found in file.declarations if found.value is not None for name, _ in uses(found.value, frozenset())
    }
    for declared in file.declarations:
        if declared.name not in used and (declared.kind in ("param", "var") or declared.is_existing):
            yield Finding(file.path, declared.line, f"{declared.kind} {declared.name} is not used")


# Modules


def _check_modules(project: Project, file: BicepFile) -> Iterator[Finding]:
    values = project.values(file)
    names: Counter[str] = Counter()
    for declared in file.of("module"):
        target = project.module(file, declared)
        if target is None:
            yield Finding(file.path, declared.line, f"module {declared.name}: {declared.type} is not there")
            continue
        body = values.of(declared.value) if declared.value is not None else {}
        names[str(body.get("name"))] += 1
        params = body.get("params", {})
        for fault in _module_faults(target, params if isinstance(params, dict) else {}):
            yield Finding(file.path, declared.line, f"module {declared.name}: {fault}")
        if "scope" not in body and scope_of(file) != scope_of(target):
            yield Finding(
                file.path, declared.line, f"module {declared.name}: has no scope, and is not for {scope_of(file)}"
            )
    for name, count in names.items():
        if count > 1:
            yield Finding(file.path, 1, f"{count} modules are deployed under the name {name}")


def _module_faults(target: BicepFile, given: dict[str, Any]) -> Iterator[str]:
    wanted = {found.name: found for found in target.of("param")}
    for name in given.keys() - wanted.keys():
        yield f"{target.path} has no parameter {name}{hint(name, wanted)}"
    for name, declared in wanted.items():
        if name not in given:
            if declared.value is None:
                yield f"parameter {name} is not given"
            continue
        for option in options_of(given[name]):
            if not _fits(option, plain_type(declared.type)):
                yield f"parameter {name} takes {declared.type}, not {type_of(option)}"
            elif allowed(declared) and not isinstance(option, Unknown) and option not in allowed(declared):
                yield f"parameter {name} does not take {option!r}"


def _check_reached(project: Project) -> Iterator[Finding]:
    """Every file is a module of another; but for the one that is deployed."""
    used = {
        target.path
        for file in project.files.values()
        for declared in file.of("module")
        if (target := project.module(file, declared)) is not None
    }
    for path in project.files.keys() - used - {MAIN}:
        yield Finding(path, 1, "no other file uses this module")


# The parameters file


def check_parameters(project: Project) -> Iterator[Finding]:
    """The parameters file gives what main.bicep asks for, of the right kind."""
    main = project.files[MAIN]
    try:
        given: dict[str, Any] = json.loads((project.root / PARAMETERS).read_text())["parameters"]
    except (ValueError, KeyError) as error:
        yield Finding(PARAMETERS, 1, f"cannot be read: {error}")
        return
    wanted = {found.name: found for found in main.of("param")}
    for name in given.keys() - wanted.keys():
        yield Finding(PARAMETERS, 1, f"{name} is no parameter of {MAIN}")
    for name, declared in wanted.items():
        if name in given:
            yield from _check_given(declared, given[name])
        elif declared.value is None:
            yield Finding(PARAMETERS, 1, f"{name} is needed by {MAIN}")


def _check_given(declared: Declaration, entry: Any) -> Iterator[Finding]:
    value = entry.get("value") if isinstance(entry, dict) else None
    match = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
    if value is None or (isinstance(value, str) and "${" in value and match is None):
        yield Finding(PARAMETERS, 1, f"{declared.name} needs a value, or ${{NAME}} or ${{NAME=default}}")
        return
    default = value if match is None else match[2]
    if default is None:
        return
    kind = plain_type(declared.type)
    forms = {"int": r"-?\d+", "bool": "true|false"}
    if not re.fullmatch(forms.get(kind, ".*"), str(default)):
        yield Finding(PARAMETERS, 1, f"{declared.name} is {kind}, not {default!r}")
    elif allowed(declared) and default not in map(str, allowed(declared)):
        yield Finding(PARAMETERS, 1, f"{declared.name} does not take {default!r}")
