"""The containers that the adapter needs: how they are partitioned, what lives how long, what has an index.

Nothing in a body is indexed, so a write costs no request units for indexing; the paths that are let the sweeper find
what is unfinished, and the records of a dispatch ledger.  Time to live is on, without a default: what has none of its
own stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from azure.core.exceptions import AzureError
from azure.cosmos import PartitionKey
from azure.cosmos.aio import CosmosClient

from outbox.azure.cosmos.items import ENTRY_PATH, PARTITION_PATH, PENDING_PATH
from outbox.azure.cosmos.outcomes import FAILURES, as_error
from outbox.errors import Refused

KEEP_UNLESS_TOLD = -1
"""Items vanish only if they say when."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container as it has to be."""

    name: str
    partition_key_path: str = PARTITION_PATH
    default_ttl_s: int = KEEP_UNLESS_TOLD
    indexed_paths: tuple[str, ...] = (PENDING_PATH, ENTRY_PATH)
    """The indexed paths; a document without them pays nothing."""
    keeps_ledgers: bool = False
    """Whether its workers keep a dispatch ledger, whose entries must have an index."""

    def indexing_policy(self) -> dict[str, Any]:
        """The indexing policy in the form of Cosmos DB."""
        return {
            "indexingMode": "consistent",
            "automatic": True,
            "includedPaths": [{"path": path} for path in self.indexed_paths],
            "excludedPaths": [{"path": "/*"}],
        }

    def as_resource(self) -> dict[str, Any]:
        """The container as Cosmos DB describes it, for templates."""
        return {
            "id": self.name,
            "partitionKey": {"paths": [self.partition_key_path], "kind": "Hash", "version": 2},
            "defaultTtl": self.default_ttl_s,
            "indexingPolicy": self.indexing_policy(),
        }


async def create_containers(client: CosmosClient, database: str, *specs: ContainerSpec) -> None:
    """Make a database and its containers where they are not there yet.

    Raises:
        Refused: one is there and cannot be used as it is, or they cannot be made.
        OutcomeUnknown: no answer says whether.
    """
    try:
        place = await client.create_database_if_not_exists(database)
        for spec in specs:
            container = await place.create_container_if_not_exists(
                spec.name,
                PartitionKey(path=spec.partition_key_path),
                default_ttl=spec.default_ttl_s,
                indexing_policy=spec.indexing_policy(),
            )
            check_container(spec, await container.read())
    except FAILURES as error:
        raise as_error(error, f"database {database}") from error


async def check_containers(client: CosmosClient, database: str, *specs: ContainerSpec) -> None:
    """Look at containers that a deployment has made.

    Raises:
        Refused: one is not there, or cannot be used as it is.
        OutcomeUnknown: no answer says whether.
    """
    for spec in specs:
        try:
            found = await client.get_database_client(database).get_container_client(spec.name).read()
        except AzureError as error:
            raise as_error(error, f"container {database}/{spec.name}") from error
        check_container(spec, found)


def check_container(spec: ContainerSpec, found: dict[str, Any]) -> None:
    """Look at what cannot be changed, and at what would lose documents or keep all of them for ever.

    Raises:
        Refused: it cannot be used.
    """
    paths = found.get("partitionKey", {}).get("paths")
    if paths != [spec.partition_key_path]:
        raise Refused(f"container {spec.name} is partitioned by {paths}, not {spec.partition_key_path}; make another")
    if found.get("defaultTtl") != spec.default_ttl_s:
        raise Refused(
            f"container {spec.name} has defaultTtl {found.get('defaultTtl')}; set it to {spec.default_ttl_s}, or "
            "records never expire, or expire before they are finished"
        )
    indexed = [each.get("path") for each in found.get("indexingPolicy", {}).get("includedPaths", [])]
    if spec.keeps_ledgers and not {ENTRY_PATH, "/*"} & set(indexed):
        raise Refused(
            f"container {spec.name} has no index on {ENTRY_PATH}, by which a dispatch ledger finds its records; add it "
            "to the included paths of its indexing policy"
        )
