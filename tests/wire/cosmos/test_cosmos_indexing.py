"""Orders that no index can serve are refused through the real SDK, as the service refuses them."""

from __future__ import annotations

from typing import Any

import pytest
from azure.cosmos import PartitionKey, exceptions

from outbox.emulator.cosmos.indexing import Indexing
from tests.wire.cosmos.conftest import Sdk, query
from tests.wire.cosmos.test_cosmos_items import status

POLICY = {
    "includedPaths": [{"path": "/*"}, {"path": "/hidden/shown/?"}],
    "excludedPaths": [{"path": "/hidden/*"}, {"path": "/leaf/?"}, {"path": '/"_etag"/?'}],
    "compositeIndexes": [
        [{"path": "/team", "order": "ascending"}, {"path": "/points", "order": "descending"}],
        [{"path": "/at/city"}, {"path": '/"a b"'}, {"path": "/points"}],
    ],
}
ITEMS = [
    {"id": "1", "pk": "a", "team": "x", "points": 1, "at": {"city": "Oslo"}, "a b": 2},
    {"id": "2", "pk": "b", "team": "x", "points": 2, "at": {"city": "Oslo"}, "a b": 1},
    {"id": "3", "pk": "a", "team": "w", "points": 3, "at": {"city": "Bonn"}, "a b": 3},
]


@pytest.fixture(scope="session")
def indexed(sdk: Sdk) -> Any:
    """A container with composite indexes, and paths that are not indexed."""
    return sdk.filled(ITEMS, indexing_policy=POLICY)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("c.team ASC, c.points DESC", "321"),
        ("c.team DESC, c.points ASC", "123"),
        ("c.team, c.points DESC", "321"),
        ("c['team'], c[\"points\"] DESC", "321"),
        ("c.at.city, c['a b'], c.points", "321"),
        ("c.at.city DESC, c['a b'] DESC, c.points DESC", "123"),
        ("c.points", "123"),
        ("c.hidden.shown DESC, c.points", None),
        ("c.hidden.shown", "132"),
        ("c.team, c.points", None),
        ("c.team DESC, c.points DESC", None),
        ("c.points DESC, c.team", None),
        ("c.at.city, c['a b']", None),
        ("c.team, c.points DESC, c.id", None),
        ("c.team, LOWER(c.points) DESC", None),
        ("c.team, c.missing", None),
        ("LOWER(c.team)", None),
        ("c.points + 1", None),
        ("1", None),
        ("c", None),
        ("c.at[0]", None),
        ("c.hidden", None),
        ("c.hidden.other", None),
        ("c.hidden.shown.more", None),
        ("c.leaf", None),
        ("c.leaf.below", "132"),
        ("c._etag", None),
    ],
)
def test_an_order_is_served_by_an_index_or_refused(indexed: Any, order: str, expected: str | None) -> None:
    text = f"SELECT VALUE c.id FROM c ORDER BY {order}"
    if expected is None:
        assert status(query, indexed, text) == 400
        assert status(query, indexed, text, partition_key="a") == 400
    else:
        assert "".join(query(indexed, text)) == expected


def test_items_are_ordered_by_when_they_were_written(indexed: Any) -> None:
    found = query(indexed, "SELECT VALUE c._ts FROM c ORDER BY c._ts DESC")  # two may be of one second
    assert found == sorted(found, reverse=True) and len(found) == len(ITEMS)


def test_a_part_of_the_item_is_ordered_by_its_whole_path(indexed: Any) -> None:
    assert query(indexed, "SELECT VALUE a.city FROM c.at a ORDER BY a.city DESC") == ["Oslo", "Oslo", "Bonn"]
    assert query(indexed, "SELECT VALUE city FROM c.at.city ORDER BY city") == ["Bonn", "Oslo", "Oslo"]
    assert status(query, indexed, "SELECT VALUE h.x FROM c.hidden h ORDER BY h.x") == 400
    assert status(query, indexed, "SELECT VALUE t FROM t IN c.tags ORDER BY t") == 400
    assert status(query, indexed, "SELECT VALUE t FROM c JOIN t IN c.tags ORDER BY t.name") == 400


def test_without_an_index_nothing_is_ordered(sdk: Sdk) -> None:
    container = sdk.container("no-index", indexing_policy={"indexingMode": "none", "automatic": False})
    container.create_item({"id": "1", "pk": "a"})
    assert query(container, "SELECT VALUE c.id FROM c WHERE c.pk = 'a'") == ["1"]
    assert status(query, container, "SELECT VALUE c.id FROM c ORDER BY c._ts") == 400


def test_the_refusal_names_the_index_that_would_serve(indexed: Any) -> None:
    with pytest.raises(exceptions.CosmosHttpResponseError, match="corresponding composite index") as caught:
        query(indexed, "SELECT * FROM c ORDER BY c.points, c.at.city DESC")
    assert '[{"path":"/points","order":"ascending"},{"path":"/at/city","order":"descending"}]' in caught.value.message


def test_a_composite_index_that_is_added_serves_from_then_on(sdk: Sdk) -> None:
    container = sdk.container("indexed-later")
    container.create_item({"id": "1", "pk": "a"})
    text = "SELECT VALUE c.id FROM c ORDER BY c.pk, c.id"
    assert status(query, container, text) == 400
    policy = {"compositeIndexes": [[{"path": "/pk", "order": "ascending"}, {"path": "/id", "order": "ascending"}]]}
    database = sdk.client.get_database_client(f"db-{sdk.mode}")
    database.replace_container("indexed-later", PartitionKey("/pk"), indexing_policy=policy)
    assert query(container, text) == ["1"]


@pytest.mark.parametrize(
    "policy",
    [
        {"compositeIndexes": "all"},
        {"compositeIndexes": [[{"order": "ascending"}]]},
        {"compositeIndexes": [[{"path": "/a", "order": "up"}, {"path": "/b"}]]},
        {"compositeIndexes": [[{"path": "a"}, {"path": "/b"}]]},
        {"compositeIndexes": [[{"path": "/a"}, {"path": "/b"}]] * 101},
        {"excludedPaths": ["/a"]},
    ],
)
def test_what_is_no_indexing_policy_is_refused(sdk: Sdk, policy: dict[str, Any]) -> None:
    assert status(sdk.container, "refused", indexing_policy=policy) == 400
    Indexing.of_stored(policy)  # one that was stored before this was checked must not stop a start
