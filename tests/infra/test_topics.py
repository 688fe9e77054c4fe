"""Topics and subscriptions in the templates: made, with rights on just these, and looked at like queues.

The sample has none, so it is a copy of it whose code has some.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.infra.test_faults import copy_to
from tools.infra_check.agreements import Site
from tools.infra_check.checks import check
from tools.infra_check.code import Code, Trigger, read_code
from tools.infra_check.project import Project
from tools.infra_for.writing import entities

BUS, ROLES, MAIN, ENTITIES = (
    "infra/modules/servicebus.bicep",
    "infra/modules/servicebus-roles.bicep",
    "infra/main.bicep",
    "local/servicebus.json",
)


@pytest.fixture
def code() -> Code:
    found = read_code()
    paths = ("news/Subscriptions/press", "news/Subscriptions/shelf")
    triggers = (*found.triggers, *(Trigger(path, found.triggers[0].connection, False) for path in paths))
    return replace(found, topics={"news": ["shelf", "press"], "rumours": []}, triggers=triggers)


@pytest.fixture
def copy(tmp_path: Path, code: Code) -> Path:
    copy_to(tmp_path)
    (tmp_path / ENTITIES).write_text(json.dumps(entities(code), indent=2))
    return tmp_path


def test_topics_are_made_with_their_subscriptions(copy: Path, code: Code) -> None:
    assert check(copy, code) == []
    site = Site.of(Project.read(copy), code)
    made = {
        kind: [body["name"] for body in site.bodies(BUS, f"Microsoft.ServiceBus/namespaces/{kind}", {"name": "bus"})]
        for kind in ("topics", "topics/subscriptions")
    }
    assert made == {"topics": ["news", "rumours"], "topics/subscriptions": ["bus/news/press", "bus/news/shelf"]}


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (ENTITIES, '"shelf"', '"shelves"', "the set of subscriptions is"),
        (ENTITIES, '"rumours"', '"rumors"', "the set of topics is"),
        (MAIN, "sendsToTopics: topics", "sendsToTopics: []", "topics to which the app may send is []"),
        (MAIN, "receivesSubscriptions: subscriptions", "receivesSubscriptions: []", "the app may receive is []"),
        (MAIN, "one => { topic: topic.Name,", "one => { topic: one.Name,", "subscriptions from which the app may"),
        (BUS, "${name}/${one.topic}/", "${name}/", "readers: stands in another resource"),
        (BUS, "lockDuration: one.properties.LockDuration", "lockDuration: 'PT30S'", "press: lockDuration is 'PT30S'"),
        (BUS, "maxDeliveryCount: maxDeliveryCount\n  }\n}]\n\noutput", "}\n}]\n\noutput", "maxDeliveryCount is None"),
        (BUS, "requiresDuplicateDetection: topic.", "enableExpress: topic.", "news: duplicate detection is None"),
        (ROLES, "scope: receiveSubscriptions[index]", "scope: bus", "single queues and topics, not on bus"),
        (ROLES, "scope: sendTopics[index]", "scope: bus", "single queues and topics, not on bus"),
    ],
)
def test_what_is_wrong_with_them_is_found(copy: Path, code: Code, file: str, old: str, new: str, said: str) -> None:
    source = (copy / file).read_text()
    assert old in source, "the fault is out of date"
    (copy / file).write_text(source.replace(old, new, 1))
    found = [str(finding) for finding in check(copy, code)]
    assert any(said in line for line in found), found
