"""Rules of subscriptions in the administration client's XML, in and out."""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

from outbox.emulator.bus import atom
from outbox.emulator.bus.filters import SYSTEM_NAMES, correlation_rule, refuse_action, sql_rule
from outbox.engine.state.rules import Rule
from outbox.errors import NotRegistrable
from outbox.message import Scalar

_TYPES = {"string": "string", "int": "int", "long": "int", "short": "int", "double": "float", "boolean": "bool"}
_INT_MAX = 2_147_483_647


def read(name: str, element: atom.Element, place: str) -> Rule:
    """The rule that a description asks for.

    Raises:
        NotRegistrable: it cannot be had; the text says why.
    """
    where = f"rule {name!r} of {place}"
    action = element.child("Action")
    if action is not None and action.attributes.get("type", "EmptyRuleAction").rpartition(":")[2] != "EmptyRuleAction":
        raise refuse_action(where)
    given = element.child("Filter")
    kind = "TrueFilter" if given is None else given.attributes.get("type", "").rpartition(":")[2]
    if given is None or kind == "TrueFilter":
        return Rule(name, "true")
    if kind == "FalseFilter":
        return Rule(name, "false")
    if kind == "CorrelationFilter":
        values = given.values()
        system = {key: values[key] for key in SYSTEM_NAMES if values.get(key)}
        return correlation_rule(name, system, _properties(given, where))
    return sql_rule(where, name, given.values().get("SqlExpression"))


def _properties(given: atom.Element, where: str) -> dict[str, Scalar]:
    listed = given.child("Properties")
    found: dict[str, Scalar] = {}
    for item in [] if listed is None else listed.children:
        key, value = item.child("Key"), item.child("Value")
        if key is None or value is None or not key.text:
            raise NotRegistrable(f"{where}: a property needs a Key and a Value")
        kind = _TYPES.get(value.attributes.get("type", "string").rpartition(":")[2])
        found[key.text] = _typed(value.text, kind, f"{where}: property {key.text!r}")
    return found


def _typed(text: str, kind: str | None, where: str) -> Scalar:
    try:
        if kind == "int" and len(text) < 20:
            return int(text)
        if kind == "float":
            return float(text)
    except ValueError:
        kind = None
    if kind == "bool" and text in ("true", "false"):
        return text == "true"
    if kind == "string":
        return text
    raise NotRegistrable(f"{where}: {text[:40]!r} must be text, a whole number, a double, true or false")


def write(rule: Rule, created_ms: int) -> str:
    """The description of a rule."""
    if rule.kind == "correlation":
        inner = atom.leaves((key, rule.system.get(name)) for key, name in SYSTEM_NAMES.items())
        inner += f"<Properties>{''.join(_pair(key, value) for key, value in rule.properties.items())}</Properties>"
        kind = "CorrelationFilter"
    else:
        kind = "TrueFilter" if rule.kind == "true" else "FalseFilter"
        inner = f"<SqlExpression>{'1=1' if rule.kind == 'true' else '1=0'}</SqlExpression>"
        inner += "<CompatibilityLevel>20</CompatibilityLevel>"
    return atom.description(
        "RuleDescription",
        f'<Filter i:type="{kind}">{inner}</Filter><Action i:type="EmptyRuleAction"/>'
        + atom.leaves([("CreatedAt", atom.moment(created_ms)), ("Name", rule.name)]),
    )


def _pair(key: str, value: Scalar) -> str:
    if isinstance(value, bool):
        kind = "boolean"
    elif isinstance(value, int):
        kind = "int" if abs(value) <= _INT_MAX else "long"
    else:
        kind = "double" if isinstance(value, float) else "string"
    shown = f"<Value i:type={quoteattr(f'd:{kind}')} xmlns:d={quoteattr(atom.SCHEMA)}>{atom.text(value)}</Value>"
    return f"<KeyValueOfstringanyType><Key>{atom.text(key)}</Key>{shown}</KeyValueOfstringanyType>"
