"""Transactional batches through the real SDK: all or nothing, conditions, limits, and which operation is to blame."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from azure.cosmos import exceptions

from tests.wire.cosmos.conftest import Sdk
from tests.wire.cosmos.test_cosmos_items import own, status


def failure(items: Any, operations: list[Any], key: object = "a") -> tuple[int, int, list[int]]:
    """Which operation of a batch failed, how, and the status of each."""
    with pytest.raises(exceptions.CosmosBatchOperationError) as caught:
        items.execute_item_batch(operations, key)
    error = caught.value
    return error.error_index, int(error.status_code or 0), [one["statusCode"] for one in error.operation_responses]


def test_a_replace_within_a_batch_may_give_an_item_another_id(items: Any) -> None:
    items.create_item({"id": "1", "pk": "a"})
    taken = [("create", ({"id": "2", "pk": "a"},)), ("replace", ("1", {"id": "2", "pk": "a"}))]
    assert failure(items, taken) == (1, 409, [424, 409])
    renaming = [
        ("replace", ("1", {"id": "2", "pk": "a"})),
        ("create", ({"id": "1", "pk": "a", "n": 1},)),
        ("read", ("2",)),
    ]
    assert [one["statusCode"] for one in items.execute_item_batch(renaming, "a")] == [200, 201, 200]
    assert sorted(item["id"] for item in items.read_all_items()) == ["1", "2"]


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        ([], "Batch request has no operations."),
        ([("read", ("1",))] * 101, "Batch request has more operations than what is supported."),
    ],
)
def test_a_batch_of_no_or_too_many_operations_is_refused_in_the_services_words(
    items: Any, operations: list[Any], said: str
) -> None:
    with pytest.raises(exceptions.CosmosHttpResponseError, match=said) as caught:
        items.execute_item_batch(operations, "a")
    assert caught.value.status_code == 400


def test_a_batch_does_all_of_its_operations(items: Any) -> None:
    old = items.create_item({"id": "old", "pk": "a", "n": 1})
    still = items.create_item({"id": "still", "pk": "a"})
    items.create_item({"id": "gone", "pk": "a"})
    results = items.execute_item_batch(
        [
            ("create", ({"id": "new", "pk": "a"},)),
            ("upsert", ({"id": "up", "pk": "a"},)),
            ("replace", ("old", {"id": "old", "pk": "a", "n": 2}), {"if_match_etag": old["_etag"]}),
            (
                "patch",
                ("old", [{"op": "incr", "path": "/n", "value": 5}]),
                {"filter_predicate": "from c where c.n = 2"},
            ),
            ("read", ("old",)),
            ("delete", ("gone",)),
            ("read", ("still",)),
        ],
        "a",
    )
    assert [one["statusCode"] for one in results] == [201, 201, 200, 200, 200, 204, 200]
    assert "resourceBody" not in results[5] and results[6]["eTag"] == still["_etag"]
    charge_ru = float(results.get_response_headers()["x-ms-request-charge"])
    assert charge_ru == pytest.approx(sum(one["requestCharge"] for one in results), abs=0.05)
    assert own(results[4]["resourceBody"]) == {"id": "old", "pk": "a", "n": 7}
    assert results[3]["eTag"] == items.read_item("old", "a")["_etag"]
    assert sorted(item["id"] for item in items.read_all_items()) == ["new", "old", "still", "up"]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (("create", ({"id": "there", "pk": "a"},)), 409),
        (("replace", ("missing", {"id": "missing", "pk": "a"})), 404),
        (("delete", ("missing",)), 404),
        (("read", ("missing",)), 404),
        (("replace", ("there", {"id": "there", "pk": "a"}), {"if_match_etag": '"0"'}), 412),
        (("upsert", ({"id": "there", "pk": "a"},), {"if_match_etag": '"0"'}), 412),
        (("delete", ("there",), {"if_match_etag": '"0"'}), 412),
        (
            ("patch", ("there", [{"op": "add", "path": "/x", "value": 1}]), {"filter_predicate": "from c where false"}),
            412,
        ),
        (("create", ({"id": "first", "pk": "a"},)), 409),
    ],
)
def test_a_batch_that_fails_does_nothing_and_names_the_cause(items: Any, operation: Any, expected: int) -> None:
    there = items.create_item({"id": "there", "pk": "a"})
    first, last = ("create", ({"id": "first", "pk": "a"},)), ("delete", ("there",))
    operation = deepcopy(operation)  # the SDK takes the options out of it
    assert failure(items, [first, operation, last]) == (1, expected, [424, expected, 424])
    assert items.read_all_items() == [there]


def test_a_batch_has_a_hundred_operations_and_no_more(items: Any) -> None:
    operations = [("create", ({"id": str(number), "pk": "a"},)) for number in range(101)]
    assert status(items.execute_item_batch, operations, "a") == 400
    assert items.read_all_items() == []
    assert len(items.execute_item_batch(operations[:100], "a")) == 100


def test_a_batch_over_two_megabytes_is_refused(items: Any) -> None:
    large = [("create", ({"id": str(number), "pk": "a", "text": "x" * 1_100_000},)) for number in range(2)]
    assert status(items.execute_item_batch, large, "a") == 413
    assert items.read_all_items() == []


@pytest.mark.parametrize(
    "operation", [("read", ("large",)), ("patch", ("large", [{"op": "incr", "path": "/n", "value": 1}]))]
)
def test_the_answer_of_a_batch_has_a_size(items: Any, operation: Any) -> None:
    items.create_item({"id": "large", "pk": "a", "n": 0, "text": "x" * 1_900_000})
    several = [deepcopy(operation) for _ in range(9)]
    assert failure(items, several) == (8, 413, [424] * 8 + [413])
    assert items.read_item("large", "a")["n"] == 0
    assert len(items.execute_item_batch(several[:8], "a")) == 8


def test_a_batch_stays_in_its_partition(items: Any) -> None:
    first = ("create", ({"id": "1", "pk": "a"},))
    for elsewhere in ({"id": "2", "pk": "b"}, {"id": "2"}, {"id": "2", "pk": None}):
        for operation in (("create", (elsewhere,)), ("upsert", (elsewhere,)), ("replace", ("2", elsewhere))):
            assert failure(items, [first, operation, first]) == (1, 400, [424, 400, 424])
    assert items.read_all_items() == []
    items.create_item({"id": "1", "pk": "a"})
    assert failure(items, [first, ("create", ({"id": "2", "pk": "b"},))]) == (0, 409, [409, 424])


def lsn(answer: Any) -> int:
    """The freshness that an answer tells, which is also that of its session token."""
    headers = answer.get_response_headers()
    assert headers["x-ms-session-token"] == f"0:-1#{headers['lsn']}"
    return int(headers["lsn"])


def test_a_batch_is_one_step_of_a_containers_freshness(sdk: Sdk, items: Any) -> None:
    other = sdk.container(f"{items.target.id}-other")
    items.create_item({"id": "gone", "pk": "a"})
    before = lsn(items.create_item({"id": "1", "pk": "a", "n": 1}))
    other.create_item({"id": "1", "pk": "a"})
    operations = [
        ("create", ({"id": "2", "pk": "a"},)),
        ("delete", ("gone",)),
        ("create", ({"id": "gone", "pk": "a"},)),
        ("patch", ("1", [{"op": "incr", "path": "/n", "value": 1}])),
    ]
    assert lsn(items.execute_item_batch(operations, "a")) == before + 1
    assert lsn(items.execute_item_batch([("read", ("1",))], "a")) == before + 1
    assert lsn(items.read_item("1", "a")) == before + 1
    other.delete_item("1", "a")
    assert lsn(items.upsert_item({"id": "1", "pk": "b"})) == before + 2


def test_a_batch_comes_on_one_page_of_the_change_feed(sdk: Sdk, items: Any) -> None:
    items.execute_item_batch([("create", ({"id": id, "pk": "a"},)) for id in "123"], "a")
    items.create_item({"id": "4", "pk": "a"})
    pages = sdk.pages(lambda: items.target.query_items_change_feed(start_time="Beginning", max_item_count=1))
    assert [sorted(item["id"] for item in page) for page in pages if page] == [["1", "2", "3"], ["4"]]
