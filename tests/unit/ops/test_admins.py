"""Every request has an answer on an engine and over a store and a bus, of the type that it names."""

from __future__ import annotations

from typing import Any, NoReturn, get_type_hints

import msgspec
import pytest

from outbox.ops.admins import engine, store
from outbox.ops.values.requests import Change, Lines, Read, answer_of

REQUESTS = [kind for base in (Read, Change) for kind in base.__subclasses__()]


def test_an_engine_and_a_store_answer_every_request() -> None:
    assert set(engine.ANSWERS) == set(store.ANSWERS) == set(REQUESTS)
    assert set(engine.LINES) == set(store.LINES) == set(Lines.__subclasses__())


ANSWERS = [
    (kind, answer)
    for table in (engine.ANSWERS, store.ANSWERS)
    for kind, answer in table.items()
    if get_type_hints(answer).get("asked") not in (None, Any)  # some are made for several requests
]


@pytest.mark.parametrize(("kind", "answer"), ANSWERS, ids=lambda each: each.__name__)
def test_an_answer_is_of_the_type_that_its_request_names(kind: Any, answer: Any) -> None:
    hints = get_type_hints(answer)
    assert hints["asked"] is kind
    assert hints["return"] in (answer_of(kind), NoReturn) or (answer_of(kind), hints["return"]) == (type(None), None)


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_request_and_its_answer_can_travel_as_json(kind: Any) -> None:
    msgspec.json.Decoder(kind)
    msgspec.json.Decoder(answer_of(kind))
