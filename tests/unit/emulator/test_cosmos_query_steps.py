"""What queries may take: one budget for all rows, turns for others within an item, and a LIKE that is bounded."""

from __future__ import annotations

import asyncio
import random
import re

import pytest

from outbox.emulator.cosmos.feeds import Candidate, Feed, Items
from outbox.emulator.cosmos.item_operations import operations_of
from outbox.emulator.cosmos.query.budget import ROW_STEP_COUNT_MAX, TEXT_STEP_LENGTH, TURN_STEP_COUNT, Budget
from outbox.emulator.cosmos.query.like import Pattern
from outbox.emulator.cosmos.query.parser import parse_query
from outbox.emulator.cosmos.query.plan import QueryPlan
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.cosmos.wire import UNDEFINED, Json, Rejection, encode
from outbox.engine.engine import Engine


def asked(text: str, items: list[Json], budget: Budget) -> tuple[Feed, Items]:
    plan = QueryPlan(parse_query(text, {}), 0, budget)
    found = [Candidate("", encode(one), 0, number) for number, one in enumerate(items)]
    return Feed(plan, text.encode(), page_count=1_000, continuation=""), Items(lambda: found)


async def turns_during(feed: Feed, items: Items) -> int:
    """How often others got their turn while a page was made, or refused."""
    turn_count, is_over = 0, False

    async def count() -> None:
        nonlocal turn_count
        while not is_over:
            turn_count += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        await feed.page(items)
    except Rejection as rejected:
        assert rejected.status == 400 and "steps" in rejected.text
    finally:
        is_over = True
        await counting
    return turn_count


@pytest.mark.parametrize(
    "text",
    [
        "SELECT VALUE 1 FROM c JOIN a IN c.list JOIN b IN c.list JOIN d IN c.none",
        "SELECT VALUE 1 FROM c JOIN a IN c.list JOIN b IN c.more WHERE c.text LIKE '%x_y%'",
        "SELECT VALUE COUNT(1) FROM c JOIN a IN c.list JOIN b IN c.more WHERE CONTAINS(c.text, 'y')",
        "SELECT VALUE a FROM c JOIN a IN c.list JOIN b IN c.more WHERE c.text != c.more ORDER BY c.text",
        "SELECT DISTINCT VALUE {a: a, b: b} FROM c JOIN a IN c.list JOIN b IN c.more WHERE UPPER(c.text) = 'Y'",
    ],
)
async def test_others_get_their_turn_within_one_item(text: str) -> None:
    budget = Budget(400_000)
    item = {"id": "1", "list": list(range(500)), "more": list(range(20)), "none": [], "text": "x" * 5_000}
    turn_count = await turns_during(*asked(text, [item], budget))
    assert budget.step_count > 10 * TURN_STEP_COUNT
    assert turn_count >= budget.step_count // TURN_STEP_COUNT // 2


async def test_one_budget_is_for_all_rows() -> None:
    """A query whose every row is cheap is refused all the same once there are too many of them."""
    items: list[Json] = [{"id": str(number), "n": number} for number in range(1_000)]
    text = "SELECT VALUE c.n FROM c WHERE " + " OR ".join(f"c.n = {number}.5" for number in range(50))
    feed, source = asked(text, items, budget := Budget())
    assert (await feed.page(source)).results == []
    assert 50_000 < budget.step_count < 1_000_000
    feed, source = asked(text, items, Budget(budget.step_count - 1))
    with pytest.raises(Rejection, match="steps; give a partition key, narrow WHERE, or join less"):
        await feed.page(source)


@pytest.mark.parametrize(
    "expression",
    [
        "ARRAY_CONTAINS(c.list, c.list)",
        "c.list != c.list",
        "c.list IN ([c.text], [c.list])",
        "LENGTH(TOSTRING(c.list)) = 1",
        "LENGTH(REPLACE(c.text, 'a', 'b')) = 1",
        "c.text LIKE '%x_y%'",
        "LENGTH(c.text || c.text) = 1",
        "LENGTH('' || c.text) = 1",
        "ARRAY_LENGTH(ARRAY_CONCAT(c.list, c.list)) = 1",
    ],
)
async def test_what_grows_with_a_value_counts_on_one_row(expression: str) -> None:
    """A row is evaluated in one go, so it may not take long, however small its query is beside its item."""
    item = {"id": "1", "list": [[number] for number in range(20_000)], "text": "x" * 1_000_000}
    text = "SELECT * FROM c WHERE " + " OR ".join([expression] * 300)
    feed, source = asked(text, [item], budget := Budget())
    with pytest.raises(Rejection, match="steps on one row"):
        await feed.page(source)
    assert budget.step_count <= 3 * ROW_STEP_COUNT_MAX


async def test_the_conditions_of_a_batch_have_one_budget(engine: Engine) -> None:
    """Each is cheap enough; a hundred of them, in one go, are not."""
    condition = f"from c where c.text like '%{'x_' * 150}y%'"
    patch = {"operations": [{"op": "add", "path": "/n", "value": 1}], "condition": condition}
    one = {"operationType": "Patch", "id": "1", "partitionKey": '["a"]', "resourceBody": patch}
    store = CosmosEmulator(engine, port=0).store
    body = {"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}}
    container = store.catalog.create_container(store.catalog.create_database({"id": "d"}), body)
    operations = operations_of(encode([one] * 100), container, '["a"]')
    item = {"id": "1", "pk": "a", "text": "x" * 10_000}
    refused = []
    for operation in operations:
        assert operation.patch is not None
        try:
            operation.patch.apply(item)
        except Rejection as rejected:
            refused.append(rejected.status)
    assert refused[0] == 412 and refused[-1] == 400


# LIKE


def test_like_fits_as_a_regular_expression_does() -> None:
    chance = random.Random(5)
    fitting_count = 0
    for _ in range(20_000):
        text = "".join(chance.choices("ab%_", k=chance.randrange(9)))
        pattern = "".join(chance.choices("ab%%__!", k=chance.randrange(8)))
        escape = chance.choice(("", "!"))
        parts, is_escaped = [], False
        for dead_letter in pattern:
            if dead_letter == escape and not is_escaped:
                is_escaped = True
                continue
            parts.append(
                re.escape(dead_letter) if is_escaped else {"%": ".*", "_": "."}.get(dead_letter, re.escape(dead_letter))
            )
            is_escaped = False
        expected = re.fullmatch("".join(parts), text, re.DOTALL) is not None
        fitting_count += expected
        assert Pattern(pattern, escape, Budget()).fits(text, Budget()) is expected, (text, pattern, escape)
    assert 3_000 < fitting_count < 17_000


@pytest.mark.parametrize(("pattern", "is_fitting"), [("%x" * 1_000 + "y", False), ("%x" * 1_000, True)])
def test_like_is_linear_in_the_text_however_many_segments_there_are(pattern: str, is_fitting: bool) -> None:
    """These took a step for each character of both, multiplied."""
    budget = Budget()
    assert Pattern(pattern, "", Budget()).fits("x" * 1_000_000, budget) is is_fitting
    assert 1_000_000 // TEXT_STEP_LENGTH <= budget.step_count < 20_000


@pytest.mark.parametrize("pattern", ["%" + "x" * 500_000 + "y%", "%x" * 100_000])
def test_a_pattern_that_takes_too_long_is_refused(pattern: str) -> None:
    with pytest.raises(Rejection, match="steps on one row"):
        Pattern(pattern, "", Budget()).fits("x" * 1_000_000, Budget())


def test_what_is_within_a_value_counts_at_any_depth() -> None:
    budget, text = Budget(), "x" * (5 * TEXT_STEP_LENGTH)
    budget.weigh({"a": [text, {"b": text}]})
    assert budget.step_count == 1 + 2 + 5 + 1 + 5


@pytest.mark.parametrize(("at", "found"), [(0, "a"), (1, "b"), (2, UNDEFINED), (-1, UNDEFINED), (0.5, UNDEFINED)])
def test_an_array_has_elements_from_its_first_to_its_last(at: Json, found: Json) -> None:
    plan = QueryPlan(parse_query(f"SELECT VALUE c.l[{at}] FROM c", {}), 0)
    assert plan.result({"c": {"l": ["a", "b"]}}) == found
