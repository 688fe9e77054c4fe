"""The administration client's requests: entities and rules to create, read, list, change and delete.

Data in, data out: a method, a path, a query and a body give a status and a document.  Every change is one call of the
engine and a description kept beside it; that both are safe before the answer leaves is the caller's part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import quoteattr

from outbox.emulator.bus import atom, descriptions
from outbox.emulator.bus.addresses import declared_path, wrong_name, wrong_part
from outbox.emulator.bus.descriptions import Description
from outbox.emulator.bus.filters import SYSTEM_NAMES, correlation_rule, refuse_action, sql_rule
from outbox.emulator.dialect import Answer, Refusal
from outbox.emulator.xml import Element, text
from outbox.engine.engine import Engine
from outbox.engine.entities import TopicSettings, subscription_path
from outbox.engine.state.rules import DEFAULT_RULE, Rule
from outbox.errors import NotRegistrable, Refused, UnknownDestination
from outbox.message import Scalar

PAGE_COUNT_MAX = 1_000
QUEUE, TOPIC, SUBSCRIPTION, RULE = "QueueDescription", "TopicDescription", "SubscriptionDescription", "RuleDescription"
_TYPES = {"string": "string", "int": "int", "long": "int", "short": "int", "double": "float", "boolean": "bool"}
_INT_MAX = 2_147_483_647
_STATUSES: dict[type[Exception], int] = {NotRegistrable: 400, UnknownDestination: 404, Refused: 409}


class Target(NamedTuple):
    """The target of a path: an entity, its subscription, a rule of that; an empty name: all of the kind."""

    entity: str
    subscription: str | None = None
    rule: str | None = None


def _replied(status: int, document: str = "") -> Answer:
    return Answer(status, {"Content-Type": "application/atom+xml; charset=utf-8"}, document.encode())


class Wrong(Refusal):
    """A request that is answered with an error."""

    def __init__(self, status: int, text: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self._retry_after_s = retry_after_s

    def answer(self) -> Answer:
        """The service's error document."""
        reply = _replied(self.status, f"<Error>{atom.leaves([('Code', self.status), ('Detail', str(self))])}</Error>")
        if self._retry_after_s:
            reply.headers["Retry-After"] = f"{self._retry_after_s:g}"
        return reply


class Administration:
    """The entities of one engine."""

    def __init__(self, engine: Engine, origin: str = "") -> None:
        self._engine = engine
        self.origin = origin
        """How addresses in answers begin."""

    def answer(self, method: str, raw_path: str, query: str, body: bytes, *, update: bool) -> Answer:
        """Do what a request asks; `update` says that the entity must be there."""
        try:
            return self._route(method, raw_path.partition("?")[0], parse_qs(query, max_num_fields=20), body, update)
        except Wrong as wrong:
            return wrong.answer()
        except (NotRegistrable, UnknownDestination, Refused, ValueError) as error:
            status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 400)
            return Wrong(status, str(error)).answer()

    def _route(self, method: str, path: str, query: Mapping[str, list[str]], body: bytes, update: bool) -> Answer:
        kind = path.strip("/").lower()
        if kind == "$namespaceinfo" and method == "GET":
            return _replied(200, self._namespace())
        if kind in ("$resources/queues", "$resources/topics"):
            names = self._queues() if kind.endswith("queues") else sorted(self._engine.topology.topics)
            described = QUEUE if kind.endswith("queues") else TOPIC
            return self._list(method, path, query, names, lambda name: self._entry(name, name, described))
        target = self._declared(read_target(path))
        if target.subscription == "":
            topic = self._topic(target.entity)
            names = sorted(self._engine.topology.topics[topic].subscriptions)
            return self._list(method, path, query, names, lambda name: self._subscription_entry(topic, name))
        if target.rule == "":
            rules = self._engine.topology.rules(self._subscription(target))
            return self._list(method, path, query, list(rules), lambda name: self._rule_entry(target, name))
        handler = {"GET": self._get, "PUT": self._put, "DELETE": self._delete}.get(method)
        if handler is None:
            raise Wrong(405, f"{method[:20]} is no operation on an entity; use GET, PUT or DELETE")
        return handler(target, body, update)

    def _declared(self, target: Target) -> Target:
        """A target in the case in which its entity was declared."""
        entity = declared_path(self._engine, target.entity)
        if not target.subscription:
            return target._replace(entity=entity)
        path = declared_path(self._engine, subscription_path(entity, target.subscription))
        return target._replace(entity=entity, subscription=path[-len(target.subscription) :])

    # Read

    def _list(
        self, method: str, path: str, query: Mapping[str, list[str]], names: list[str], show: Callable[[str], str]
    ) -> Answer:
        if method != "GET":
            raise Wrong(405, f"{method[:20]} is no operation on a list; use GET")
        skip, top = (_number(query, name, default) for name, default in (("$skip", 0), ("$top", 100)))
        top = min(top, PAGE_COUNT_MAX)
        page, address = names[skip : skip + top], self.origin + path
        more = f"{address}?$skip={skip + top}&$top={top}" if len(names) > skip + top and top else ""
        entries = [show(name) for name in page]
        return _replied(
            200, atom.feed(address, path.rpartition("/")[2], entries, now_ms=self._engine.now_ms(), more=more)
        )

    def _get(self, target: Target, body: bytes, update: bool) -> Answer:
        if target.rule is not None:
            if target.rule not in self._engine.topology.rules(self._subscription(target)):
                raise Wrong(404, f"rule {target.rule!r} does not exist; check the spelling")
            return _replied(200, self._rule_entry(target, target.rule))
        if target.subscription is not None:
            self._subscription(target)
            return _replied(200, self._subscription_entry(target.entity, target.subscription))
        if target.entity in self._engine.topology.topics:
            return _replied(200, self._entry(target.entity, target.entity, TOPIC))
        if target.entity in self._queues():
            return _replied(200, self._entry(target.entity, target.entity, QUEUE))
        raise Wrong(404, f"queue or topic {target.entity!r} does not exist; create it, or check the spelling")

    def _queues(self) -> list[str]:
        inner = {
            subscription_path(topic.name, name)
            for topic in self._engine.topology.topics.values()
            for name in topic.subscriptions
        }
        return sorted(self._engine.topology.queues.keys() - inner)

    def _topic(self, name: str) -> str:
        if name not in self._engine.topology.topics:
            raise Wrong(404, f"topic {name!r} does not exist; create it, or check the spelling")
        return name

    def _subscription(self, target: Target) -> str:
        topic = self._engine.topology.topics[self._topic(target.entity)]
        if target.subscription not in topic.subscriptions:
            raise Wrong(404, f"subscription {target.subscription!r} of {topic.name!r} does not exist; create it")
        assert target.subscription is not None
        return subscription_path(topic.name, target.subscription)

    def _subscription_entry(self, topic: str, name: str) -> str:
        return self._entry(subscription_path(topic, name), name, SUBSCRIPTION)

    def _entry(self, path: str, title: str, kind: str) -> str:
        described = descriptions.known(self._engine, path, kind)
        inner = descriptions.write(self._engine, path, described)
        times = {"created_ms": described.created_ms, "updated_ms": described.updated_ms}
        return atom.entry(f"{self.origin}/{_address(path)}", title, inner, **times)

    def _rule_entry(self, target: Target, name: str) -> str:
        path = self._subscription(target)
        made_ms = descriptions.known(self._engine, path, SUBSCRIPTION).created_ms
        address = f"{self.origin}/{_address(path)}/Rules/{_address(name)}"
        inner = write_rule(self._engine.topology.rules(path)[name], made_ms)
        return atom.entry(address, name, inner, created_ms=made_ms, updated_ms=made_ms)

    def _namespace(self) -> str:
        facts = [("Alias", None), ("CreatedTime", atom.moment(0)), ("MessagingSKU", "Standard"),
                 ("ModifiedTime", atom.moment(0)), ("Name", "outbox"), ("NamespaceType", "Messaging")]  # fmt: skip
        inner = atom.description("NamespaceInfo", atom.leaves(facts))
        return atom.entry(f"{self.origin}/$namespaceinfo", "outbox", inner, created_ms=0, updated_ms=0)

    # Change

    def _put(self, target: Target, body: bytes, update: bool) -> Answer:
        if target.rule is not None:
            return self._put_rule(target, body, update)
        if target.subscription is not None:
            return self._put_subscription(target, body, update)
        name = target.entity
        if (text := wrong_name(name)) and name not in self._queues() and name not in self._engine.topology.topics:
            raise Wrong(400, text)
        kind = TOPIC if (atom.parse(body).child("content") or _NOTHING).child(TOPIC) is not None else QUEUE
        element = atom.content(body, kind)
        given = descriptions.read(kind, element, repr(name))
        there = name in (self._engine.topology.topics if kind == TOPIC else self._queues())
        described = self._merged(name, kind, given, there=there, update=update)
        if kind == TOPIC:
            descriptions.settings_of(name, described.given)
            self._engine.declare(TopicSettings(name, ()))
            for subscription in self._engine.topology.topics[name].subscriptions:
                path = subscription_path(name, subscription)
                own = descriptions.known(self._engine, path, SUBSCRIPTION).given
                self._engine.declare(descriptions.settings_of(path, own, described.given))
        else:
            self._engine.declare(descriptions.settings_of(name, described.given))
            self._pause(name, element)
        descriptions.keep(self._engine, name, described)
        return _replied(200 if there else 201, self._entry(name, name, kind))

    def _merged(self, path: str, kind: str, given: dict[str, str], *, there: bool, update: bool) -> Description:
        """The description that a request leaves: the old one with the given changes.  An update says only what it
        changes."""
        if there and not update:
            raise Wrong(409, f"{path!r} is there already; update it instead")
        if update and not there:
            raise Wrong(404, f"{path!r} does not exist; create it first")
        now_ms = self._engine.now_ms()
        if not there:
            return Description(kind=kind, given=given, created_ms=now_ms, updated_ms=now_ms)
        old = descriptions.known(self._engine, path, kind)
        detects = old.given.get("RequiresDuplicateDetection", "false")
        if given.get("RequiresDuplicateDetection", detects).lower() != detects.lower():
            text = f"RequiresDuplicateDetection is {detects.lower()} and cannot be changed; drain it and use a new name"
            raise Wrong(400, f"{path!r}: {text}")
        return Description(kind=kind, given=old.given | given, created_ms=old.created_ms, updated_ms=now_ms)

    def _put_subscription(self, target: Target, body: bytes, update: bool) -> Answer:
        topic, name = self._topic(target.entity), target.subscription or ""
        path = subscription_path(topic, name)
        there = name in self._engine.topology.topics[topic].subscriptions
        if (text := wrong_part(name)) and not there:
            raise Wrong(400, text)
        element = atom.content(body, SUBSCRIPTION)
        given = descriptions.read(SUBSCRIPTION, element, repr(path))
        described = self._merged(path, SUBSCRIPTION, given, there=there, update=update)
        first = None if there else element.child("DefaultRuleDescription")
        rule = None if first is None else read_rule(_named(first.values().get("Name") or DEFAULT_RULE), first, path)
        above = descriptions.known(self._engine, topic, TOPIC).given
        self._engine.declare(descriptions.settings_of(path, described.given, above), TopicSettings(topic, (name,)))
        if rule is not None:
            self._engine.topology.set_rules(path, [rule])
        self._pause(path, element)
        descriptions.keep(self._engine, path, described)
        return _replied(200 if there else 201, self._subscription_entry(topic, name))

    def _pause(self, path: str, element: Element) -> None:
        if status := element.values().get("Status"):
            self._engine.topology.pause(path, paused=status == descriptions.PAUSED)

    def _put_rule(self, target: Target, body: bytes, update: bool) -> Answer:
        path, name = self._subscription(target), target.rule or ""
        rule = read_rule(name, atom.content(body, RULE), path)
        rules = self._engine.topology.rules(path)
        if name not in rules:
            _named(name)
        if (name in rules) != update:
            raise Wrong(404 if update else 409, f"rule {name!r} {'does not exist' if update else 'is there already'}")
        self._engine.topology.set_rules(path, list((rules | {name: rule}).values()))
        return _replied(200 if update else 201, self._rule_entry(target, name))

    def _delete(self, target: Target, body: bytes, update: bool) -> Answer:
        if target.rule is not None:
            path = self._subscription(target)
            rules = self._engine.topology.rules(path)
            if rules.pop(target.rule, None) is None:
                raise Wrong(404, f"rule {target.rule!r} does not exist; check the spelling")
            self._engine.topology.set_rules(path, list(rules.values()))
            return _replied(200)
        path = target.entity if target.subscription is None else self._subscription(target)
        if target.subscription is None and path not in self._engine.topology.topics and path not in self._queues():
            raise Wrong(404, f"queue or topic {path!r} does not exist; check the spelling")
        topic = self._engine.topology.topics.get(path)
        gone = [subscription_path(path, name) for name in topic.subscriptions] if topic is not None else []
        self._engine.topology.delete(path)
        descriptions.forget(self._engine, [path, *gone])
        return _replied(200)


_NOTHING = Element("", {})


def read_target(raw_path: str) -> Target:
    """Read the target of a request's path.  An entity's own slashes come quoted, or plain from clients that do not
    quote.

    Raises:
        Wrong: it names nothing.
    """
    parts = raw_path.removeprefix("/").split("/")
    lowered = [part.lower() for part in parts]
    at = lowered.index("subscriptions", 1) if "subscriptions" in lowered[1:] else len(parts)
    entity = unquote("/".join(parts[:at]))
    rest = [unquote(part) for part in parts[at + 1 :]]
    if at == len(parts):
        return Target(entity)
    if len(rest) <= 1:
        return Target(entity, "".join(rest))
    if rest[1].lower() == "rules" and len(rest) <= 3:
        return Target(entity, rest[0], "".join(rest[2:]))
    raise Wrong(404, f"{raw_path[:200]!r} names no entity; check the address")


def _address(path: str) -> str:
    """A path as an entry's id has it, from which the SDK of JavaScript takes names unchanged."""
    return quote(path, safe="/$")


def _number(query: Mapping[str, list[str]], name: str, default: int) -> int:
    text = query.get(name, [str(default)])[0]
    if not text.isdecimal() or len(text) > 9:
        raise Wrong(400, f"{name} must be a whole number")
    return int(text)


# Rules in XML, in and out


def _named(rule: str) -> str:
    """The name of a rule that is made.

    Raises:
        Wrong: it cannot be one.
    """
    if rule != DEFAULT_RULE and (text := wrong_part(rule)):
        raise Wrong(400, text)
    return rule


def read_rule(name: str, element: Element, place: str) -> Rule:
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


def _properties(given: Element, where: str) -> dict[str, Scalar]:
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


def write_rule(rule: Rule, created_ms: int) -> str:
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
    # The SDK of JavaScript takes the type from behind the fifth character: the prefix has to be the service's.
    named = f"i:type={quoteattr(f'd6p1:{kind}')} xmlns:d6p1={quoteattr(atom.SCHEMA)}"
    shown = f"<Value {named}>{text(value)}</Value>"
    return f"<KeyValueOfstringanyType><Key>{text(key)}</Key>{shown}</KeyValueOfstringanyType>"
