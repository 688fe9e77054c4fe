"""The entities file of the official Service Bus emulator, as queues and topics of the engine.

Decides what each property of that JSON means here and refuses what would silently behave otherwise: forwarding, filters
in SQL, actions, names twice.  Everything is read with limits, and every error names the entity and the property.

A topic's duplicate detection and time to live do not exist on our topics: they hold for each of its subscriptions,
which has the same effect on every message that a subscription takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from outbox.emulator.bus.addresses import wrong_name, wrong_part
from outbox.emulator.bus.filters import SYSTEM_NAMES, correlation_rule, refuse_action, sql_rule
from outbox.engine.entities import QueueSettings, TopicSettings, subscription_path
from outbox.engine.state.rules import DEFAULT_RULE, Rule, RuleSettings, check_rules
from outbox.errors import NotRegistrable

FILE_SIZE_MAX_BYTES = 1 << 20
ENTITY_COUNT_MAX = 1_000
LOCK_MIN_S, LOCK_MAX_S = 5.0, 300.0
LIFE_MIN_S = 1.0
WINDOW_MIN_S, WINDOW_MAX_S = 20.0, 7 * 86_400.0
DELIVERY_COUNT_MAX = 2_000
DURATION_FOREVER_S = 315_360_000.0
"""Ten years; a longer duration is for ever, as the service's own default (P10675199D...) is."""

Entity = QueueSettings | TopicSettings | RuleSettings

_DURATION = re.compile(
    r"P(?:(?P<days>\d{1,8})D)?"
    r"(?:T(?:(?P<hours>\d{1,8})H)?(?:(?P<minutes>\d{1,8})M)?(?:(?P<seconds>\d{1,8}(?:\.\d{1,9})?)S)?)?"
)
_IGNORED = frozenset(("UserMetadata", "Status", "EnablePartitioning", "EnableBatchedOperations", "MaxSizeInMegabytes"))

_KNOWN = frozenset(
    (
        "DeadLetteringOnMessageExpiration",
        "DefaultMessageTimeToLive",
        "DuplicateDetectionHistoryTimeWindow",
        "LockDuration",
        "MaxDeliveryCount",
        "RequiresDuplicateDetection",
        "RequiresSession",
    )
)


def read_entities(path: Path) -> list[Entity]:
    """Read an entities file.

    Raises:
        NotRegistrable: it cannot be read, or says what is not supported; the text names the place.
    """
    try:
        size = path.stat().st_size
        if size > FILE_SIZE_MAX_BYTES:
            raise NotRegistrable(f"entities file {path.name} has {size} bytes, above {FILE_SIZE_MAX_BYTES}; split it")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise NotRegistrable(
            f"entities file {path.name} cannot be read ({error}); check its name and encoding"
        ) from error
    return parse_entities(text)


def parse_entities(text: str) -> list[Entity]:
    """The queues, subscriptions and topics of an entities file's text, to be declared one by one in this order.

    Raises:
        NotRegistrable: it says what is not supported; the text names the place.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotRegistrable(f"the entities file is not JSON ({error}); correct it") from error
    found: list[Entity] = []
    file = Section(data, "the file")
    file.only("UserConfig")
    config = file.section("UserConfig")
    config.only("Namespaces", "Logging")
    for namespace in _items(config, "Namespaces"):
        namespace.only("Name", "Queues", "Topics")
        for item in _items(namespace, "Queues"):
            name = item.name(wrong_name)
            item.only("Name", "Properties")
            found.append(queue_settings(item.place, name, item.properties()))
        for item in _items(namespace, "Topics"):
            found += _topic(item)
    names = [settings.name for settings in found if not isinstance(settings, RuleSettings)]
    if len(names) > ENTITY_COUNT_MAX:
        raise NotRegistrable(f"the entities file has more than {ENTITY_COUNT_MAX} entities; use fewer")
    for name in names:
        if names.count(name) > 1:
            raise NotRegistrable(f"entity {name!r} stands in the entities file twice; give each its own name")
    return found


class Section:
    """One object of the file and where it stands, for the error texts."""

    def __init__(self, data: object, place: str) -> None:
        if not isinstance(data, dict):
            raise NotRegistrable(f"{place} must be a JSON object; correct the entities file")
        self.data: dict[str, Any] = data
        self.place = place

    def only(self, *known: str) -> None:
        """Refuse a member that is not one of these: one that is misspelt would have no effect."""
        if unknown := self.data.keys() - set(known):
            raise NotRegistrable(f"{self.place}: member {min(unknown)!r} is not known; check its spelling")

    def section(self, name: str) -> Section:
        return Section(self.data.get(name, {}), f"{name} of {self.place}")

    def name(self, wrong: Callable[[str], str]) -> str:
        name = self.data.get("Name")
        if not isinstance(name, str):
            raise NotRegistrable(f"{self.place} needs a Name")
        if text := wrong(name):
            raise NotRegistrable(f"{self.place}: Name {text}")
        self.place = f"{name!r}"
        return name

    def properties(self) -> Section:
        properties = self.section("Properties")
        for name, value in properties.data.items():
            if name.startswith("Forward") and value:
                raise NotRegistrable(f"{self.place}: {name} is not supported yet; let a handler forward the messages")
            if name not in _KNOWN and name not in _IGNORED and not name.startswith("Forward"):
                raise NotRegistrable(f"{self.place}: property {name!r} is not known; check its spelling")
        return properties

    def flag(self, name: str, default: bool) -> bool:
        value = self.data.get(name, default)
        if not isinstance(value, bool):
            raise NotRegistrable(f"{self.place}: {name} must be true or false")
        return value

    def count(self, name: str, default: int, highest: int) -> int:
        value = self.data.get(name, default)
        if type(value) is not int or not 1 <= value <= highest:
            raise NotRegistrable(f"{self.place}: {name} must be a number from 1 to {highest}")
        return value

    def duration_s(self, name: str, default: str) -> float:
        value = self.data.get(name, default)
        match = _DURATION.fullmatch(value) if isinstance(value, str) and len(value) <= 64 else None
        if match is None or not any(match.groups()):
            raise NotRegistrable(f"{self.place}: {name} must be an ISO 8601 duration of days or less, such as PT1M")
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return days * 86_400 + hours * 3_600 + minutes * 60 + seconds


def _items(section: Section, name: str) -> Iterator[Section]:
    items = section.data.get(name, [])
    if not isinstance(items, list) or len(items) > ENTITY_COUNT_MAX:
        raise NotRegistrable(f"{name} of {section.place} must be a list of {ENTITY_COUNT_MAX} at most")
    for index, item in enumerate(items):
        yield Section(item, f"{name}[{index}] of {section.place}")


def queue_settings(place: str, path: str, properties: Section, topic: Section | None = None) -> QueueSettings:
    """The settings of a queue, or of a subscription with what its topic says.

    Raises:
        NotRegistrable: a value cannot be one; the text names it.
    """
    lock_s = properties.duration_s("LockDuration", "PT1M")
    if not LOCK_MIN_S <= lock_s <= LOCK_MAX_S:
        raise NotRegistrable(f"{place}: LockDuration must be {LOCK_MIN_S:g} to {LOCK_MAX_S:g} s")
    lives_s = [_time_to_live_s(section) for section in (properties, topic) if section is not None]
    windows_s = [_duplicate_window_s(section) for section in (properties, topic) if section is not None]
    return QueueSettings(
        path,
        ordering="per_key" if properties.flag("RequiresSession", False) else "unordered",
        lock_s=lock_s,
        max_delivery_count=properties.count("MaxDeliveryCount", 10, DELIVERY_COUNT_MAX),
        duplicate_window_s=max(windows_s),
        time_to_live_s=min((value for value in lives_s if value), default=0.0),
        dead_letter_on_expiry=properties.flag("DeadLetteringOnMessageExpiration", False),
    )


def _time_to_live_s(properties: Section) -> float:
    if "DefaultMessageTimeToLive" not in properties.data:
        return 0.0
    value_s = properties.duration_s("DefaultMessageTimeToLive", "PT0S")
    if value_s < LIFE_MIN_S:
        text = f"DefaultMessageTimeToLive must be {LIFE_MIN_S:g} s at least; leave it out for ever"
        raise NotRegistrable(f"{properties.place}: {text}")
    return value_s if value_s < DURATION_FOREVER_S else 0.0


def _duplicate_window_s(properties: Section) -> float:
    window_s = properties.duration_s("DuplicateDetectionHistoryTimeWindow", "PT10M")
    if not WINDOW_MIN_S <= window_s <= WINDOW_MAX_S:
        text = f"DuplicateDetectionHistoryTimeWindow must be {WINDOW_MIN_S:g} s to {WINDOW_MAX_S / 86_400:g} days"
        raise NotRegistrable(f"{properties.place}: {text}")
    return window_s if properties.flag("RequiresDuplicateDetection", False) else 0.0


def _topic(item: Section) -> list[Entity]:
    name = item.name(wrong_name)
    item.only("Name", "Properties", "Subscriptions")
    properties = item.properties()
    queues: list[Entity] = []
    rules: list[Entity] = []
    subscriptions: list[str] = []
    for subscription in _items(item, "Subscriptions"):
        subscriptions.append(subscription.name(wrong_part))
        subscription.place = f"{subscriptions[-1]!r} of topic {name!r}"
        subscription.only("Name", "Properties", "Rules")
        path = subscription_path(name, subscriptions[-1])
        given = [_rule(rule) for rule in _items(subscription, "Rules")]
        if given:  # without any it has the default one
            check_rules(path, given)
            rules.append(RuleSettings(path, tuple(given)))
        queues.append(queue_settings(subscription.place, path, subscription.properties(), properties))
    return [*queues, TopicSettings(name, tuple(subscriptions)), *rules]


def _rule(item: Section) -> Rule:
    name = item.data.get("Name")
    if not isinstance(name, str):
        raise NotRegistrable(f"{item.place} needs a Name")
    if name != DEFAULT_RULE and (text := wrong_part(name)):
        raise NotRegistrable(f"{item.place}: Name {text}")
    place = f"rule {name!r}: {item.place}"
    Section(item.data, place).only("Name", "Properties")
    properties = item.section("Properties")
    properties.place = place
    known = {"FilterType", "CorrelationFilter", "SqlFilter", "Action"}
    if unknown := properties.data.keys() - known:
        raise NotRegistrable(f"{properties.place}: property {min(unknown)!r} is not known; check its spelling")
    if properties.section("Action").data:
        raise refuse_action(properties.place)
    if "CorrelationFilter" in properties.data:
        return _correlation(name, properties.section("CorrelationFilter"))
    kind = str(properties.data.get("FilterType", "True")).lower()
    if kind == "sql" or "SqlFilter" in properties.data:
        return sql_rule(properties.place, name, properties.section("SqlFilter").data.get("SqlExpression"))
    if kind in ("true", "false"):
        return Rule(name, "true" if kind == "true" else "false")
    raise NotRegistrable(f"{properties.place}: FilterType {kind!r} needs a CorrelationFilter of its own")


def _correlation(name: str, given: Section) -> Rule:
    system: dict[str, str] = {}
    for key, value in given.data.items():
        if key == "Properties":
            continue
        if key not in SYSTEM_NAMES or not isinstance(value, str):
            raise NotRegistrable(f"{given.place}: {key!r} must be text, and one of {', '.join(SYSTEM_NAMES)}")
        if value:
            system[key] = value
    properties = given.section("Properties").data
    for key, value in properties.items():
        if not isinstance(value, str | int | float | bool):
            raise NotRegistrable(f"{given.place}: property {key!r} must be text, a number, true or false")
    return correlation_rule(name, system, properties)
