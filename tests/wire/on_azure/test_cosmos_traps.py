"""What the real SDK and the service do to a writer, provoked: each of these once looked like something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from azure.cosmos.exceptions import CosmosHttpResponseError
from azure.cosmos.partition_key import PartitionKey

from outbox.azure.cosmos import store
from outbox.azure.cosmos.outcomes import FAILURES
from outbox.azure.cosmos.store import CosmosStateStore, KeyRange
from outbox.emulator.faults import FaultRule
from outbox.errors import OutcomeUnknown, Refused, Throttled, Unreachable
from outbox.ports import Create, Delete, DocumentKey, Lost, Replace, Won, Write
from tests.wire.on_azure.ground import CosmosGround, cosmos_ground

A, B = DocumentKey("p", "a"), DocumentKey("p", "b")


@pytest_asyncio.fixture
async def ground() -> AsyncIterator[CosmosGround]:
    async with cosmos_ground(history_s=60) as found:
        yield found


def install(ground: CosmosGround, **fields: Any) -> None:
    ground.emulator.faults.install(FaultRule(**fields))


async def version_of(store: CosmosStateStore, *writes: Write) -> str:
    won = await store.write(writes)
    assert isinstance(won, Won)
    return won.versions[0]


KINDS: dict[str, tuple[str, Callable[[str], list[Write]]]] = {
    "create": ("item.create", lambda etag: [Create(B, b'{"tx":1}')]),
    "replace": ("item.replace", lambda etag: [Replace(A, b'{"tx":1}', etag)]),
    "delete": ("item.delete", lambda etag: [Delete(A, etag)]),
    "batch": ("batch", lambda etag: [Create(B, b'{"tx":1}'), Replace(A, b'{"tx":1}', etag)]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["lost-reply", "reset"])
async def test_a_write_whose_answer_is_lost_is_unknown_and_sent_once(
    ground: CosmosGround, kind: str, fault: str
) -> None:
    store = ground.store()
    operation, writes = KINDS[kind]
    etag = await version_of(store, Create(A, b"{}"))
    ground.emulator.reset_usage()
    install(ground, kind=fault, operation=operation)
    with pytest.raises(OutcomeUnknown, match="read before acting"):
        await store.write(writes(etag))
    assert ground.counted(operation) == {operation: 1}
    outcome = await store.write(writes(etag))
    assert isinstance(outcome, Lost if fault == "lost-reply" else Won)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("status", [408, 500, 503])
async def test_a_status_without_an_answer_is_unknown_and_sent_once(
    ground: CosmosGround, kind: str, status: int
) -> None:
    store = ground.store()
    operation, writes = KINDS[kind]
    etag = await version_of(store, Create(A, b"{}"))
    ground.emulator.reset_usage()
    install(ground, kind="status", status=status, operation=operation)
    with pytest.raises(OutcomeUnknown):
        await store.write(writes(etag))
    assert ground.counted(operation) == {operation: 1}


@pytest.mark.parametrize("status", ["throttled", 449])
async def test_throttling_within_a_batch_is_waited_out_with_the_conditions_kept(
    ground: CosmosGround, status: str | int
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    store = ground.store(sleep=sleep, chance=lambda: 0.0)
    etag = await version_of(store, Create(A, b"{}"))
    how = {"kind": "throttled", "retry_after_s": 0.3} if status == "throttled" else {"kind": "status", "status": status}
    install(ground, operation="batch", batch_index=1, count=2, **how)
    await store.write([Replace(A, b"2", etag), Create(B, b"{}")])
    assert waits == ([0.3, 0.3] if status == "throttled" else [0.05, 0.05])
    assert isinstance(await store.write([Replace(A, b"3", etag), Delete(B, "x")]), Lost)


async def test_a_batch_that_is_throttled_and_then_stale_loses(ground: CosmosGround) -> None:
    """The SDK takes the ETags out of the operations that it is given: sent again as they are, this would win."""
    store, other = ground.store(), ground.store()
    etag = await version_of(store, Create(A, b"1"))

    async def meanwhile(_: float) -> None:
        await other.write([Replace(A, b"2", etag)])

    store = ground.store(sleep=meanwhile)
    install(ground, kind="throttled", operation="batch", batch_index=0, retry_after_s=0.01)
    assert await store.write([Replace(A, b"3", etag), Create(B, b"{}")]) == Lost(0, None, session=ANY)
    found = await store.read(A)
    assert found is not None and found.body == b"2"


class _Any(str):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other != ""

    __hash__ = str.__hash__


ANY = _Any()


async def test_throttling_that_goes_on_is_the_callers_affair(ground: CosmosGround) -> None:
    store = ground.store()
    install(ground, kind="throttled", operation="batch", batch_index=0, retry_after_s=1.5, count=None)
    with pytest.raises(Throttled) as caught:
        await store.write([Create(A, b"1"), Create(B, b"1")])
    assert caught.value.retry_after_s == 1.5 and caught.value.__cause__ is not None
    assert await store.read(A) is None


async def test_a_write_that_takes_too_long_is_unknown(ground: CosmosGround) -> None:
    store = ground.store(timeout_s=0.3)
    await store.write([Create(A, b"1")])
    install(ground, kind="delay", delay_s=0.6, operation="batch")
    with pytest.raises(OutcomeUnknown):
        await store.write([Create(B, b"1"), Create(DocumentKey("p", "c"), b"1")])
    assert await store.read(B) is None
    await asyncio.sleep(0.5)
    assert await store.read(B) is not None, "it landed late"


@pytest.mark.parametrize("count", [1, 2])
async def test_a_session_token_makes_a_read_of_another_process_fresh(ground: CosmosGround, count: int) -> None:
    writer, reader = ground.store(), ground.store()
    etag = await version_of(writer, Create(A, b"1"))
    install(ground, kind="stale-read", operation="item.read", behind_count=1, count=None)
    writes: list[Write] = [Replace(A, b"2", etag), Create(B, b"1")]
    won = await writer.write(writes[:count])
    stale, fresh = await reader.read(A), await reader.read(A, session=won.session)
    assert stale is not None and stale.body == b"1"
    assert fresh is not None and fresh.body == b"2" and fresh.session


@pytest.mark.parametrize("what", ["create", "replace", "delete", "batch"])
async def test_a_read_is_as_fresh_as_what_its_store_has_written(ground: CosmosGround, what: str) -> None:
    """The SDK keeps the session tokens of single writes only, and finds each by hashing its key, in Python."""
    store = ground.store()
    _, writes = KINDS[what]
    etag = await version_of(store, Create(A, b"{}"))
    install(ground, kind="stale-read", operation="item.read", behind_count=1, count=None)
    await store.write(writes(etag))
    found = {key: await store.read(key) for key in (A, B)}
    assert {key: document and document.body for key, document in found.items()} == {
        A: None if what == "delete" else b'{"tx":1}' if what in ("replace", "batch") else b"{}",
        B: b'{"tx":1}' if what in ("create", "batch") else None,
    }


@pytest.mark.parametrize("count", [1, 2])
async def test_a_read_is_as_fresh_as_what_beat_its_store(ground: CosmosGround, count: int) -> None:
    store = ground.store()
    await ground.store().write([Create(A, b"1")])
    install(ground, kind="stale-read", operation="item.read", behind_count=1, count=None)
    assert isinstance(await store.write([Create(A, b"2"), Create(B, b"2")][:count]), Lost)
    found = await store.read(A)
    assert found is not None and found.body == b"1"


async def test_a_key_is_not_hashed_for_a_session_token_that_is_known(
    ground: CosmosGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[object] = []
    account = ground.account()
    store = ground.store(account)
    await version_of(store, Create(A, b"1"))
    plain = PartitionKey._get_epk_range_for_partition_key

    def noted(partition_key: PartitionKey, *given: Any, **named: Any) -> Any:
        hashed.append(named or given)
        return plain(partition_key, *given, **named)

    monkeypatch.setattr(PartitionKey, "_get_epk_range_for_partition_key", noted)
    assert await store.read(A) is not None and await store.read(B) is None
    await version_of(store, Create(B, b"1"), Create(DocumentKey("p", "c"), b"1"))
    assert hashed == []
    await ground.store(account).read(A)
    assert hashed != [], "the SDK does it for a store that knows no token yet"


class Refusing:
    """A container that refuses the second read, and notes with which options it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def read_item(self, id: str, partition: str, *, response_hook: Any, **options: Any) -> dict[str, Any]:
        self.asked.append(options)
        if len(self.asked) == 2:
            refusal: Any = CosmosHttpResponseError  # without types
            raise refusal(status_code=400, message="the session token is invalid")
        response_hook({"x-ms-session-token": "0:-1#5"})
        return {"id": id, "pk": partition, "text": "1", "_etag": "1"}


async def test_a_request_that_is_refused_as_bad_is_not_refused_for_ever() -> None:
    """It may be so for the token that it was given."""
    refusing: Any = Refusing()

    async def container() -> Any:
        return refusing

    store = CosmosStateStore(container)
    assert await store.read(A) is not None
    with pytest.raises(Refused):
        await store.read(A)
    assert await store.read(A) is not None
    assert refusing.asked == [{}, {"session_token": "0:-1#5"}, {}]


async def test_tokens_of_another_container_of_the_same_name_are_forgotten(ground: CosmosGround) -> None:
    """Its answers count from the beginning again, and would be behind those tokens for ever."""
    async with cosmos_ground() as other:
        at = ground
        accounts = {id(each): each.account() for each in (ground, other)}
        store = CosmosStateStore(lambda: accounts[id(at)].container("outbox"))
        for number in range(5):
            await version_of(store, Create(DocumentKey("p", f"{number}"), b"1"))
        at = other
        assert await store.read(A) is None
        assert await version_of(store, Create(A, b"1"), Create(B, b"1"))


async def test_a_read_that_cannot_be_as_fresh_as_its_session_is_no_answer(ground: CosmosGround) -> None:
    """The service says 404 then, as of a document that is not there, and that is what it must not be taken for."""
    store = ground.store()
    won = await store.write([Create(A, b"1")])
    install(ground, kind="status", status=404, substatus=1002, operation="item.read")
    found = await store.read(A, session=won.session)
    assert found is not None and found.body == b"1"
    install(ground, kind="status", status=404, substatus=1002, operation="item.read", count=None)
    with pytest.raises(Throttled, match="fresh"):
        await store.read(A, session=won.session)


@pytest.mark.parametrize("count", [1, 2])
async def test_a_lost_write_returns_a_session_in_which_the_winner_can_be_read(ground: CosmosGround, count: int) -> None:
    writer, loser = ground.store(), ground.store()
    await writer.write([Create(A, b"1")])
    install(ground, kind="stale-read", operation="item.read", count=None, behind_count=1)
    writes = [Create(A, b"2"), Create(B, b"2")][:count]
    lost = await loser.write(writes)
    assert isinstance(lost, Lost) and lost.operation == 0
    found = await ground.store().read(A, session=lost.session)
    assert found is not None and found.body == b"1"


async def test_the_operation_that_lost_is_named(ground: CosmosGround) -> None:
    store = ground.store()
    etag = await version_of(store, Create(B, b"1"))
    await store.write([Replace(B, b"2", etag)])
    assert (await store.write([Create(A, b"1"), Replace(B, b"3", etag)])) == Lost(1, None, ANY)
    assert (await store.write([Create(A, b"1"), Delete(DocumentKey("p", "c"), etag)])) == Lost(1, None, ANY)
    assert await store.read(A) is None


async def test_a_delete_in_a_batch_keeps_its_condition(ground: CosmosGround) -> None:
    store = ground.store()
    etag = await version_of(store, Create(B, b"1"))
    newer = await version_of(store, Replace(B, b"2", etag))
    assert await store.write([Create(A, b"1"), Delete(B, etag)]) == Lost(1, None, ANY)
    assert isinstance(await store.write([Create(A, b"1"), Delete(B, newer)]), Won)
    assert await store.read(B) is None


async def test_what_is_unfinished_is_found_page_by_page_in_all_partitions(
    ground: CosmosGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.azure.cosmos.store.PAGE_COUNT", 10)
    store = ground.store()
    keys = [DocumentKey(f"p/{n % 5}", f"inbox:{n}") for n in range(35)]
    for key in keys:
        await store.write([Create(key, b'{"pending":true}')])
    etag = await version_of(store, Create(A, b'{"pending":true}'))
    await store.write([Replace(A, b'{"done":true}', etag), Create(B, b"{}")])
    ground.emulator.reset_usage()
    install(ground, kind="throttled", operation="query", retry_after_s=0.01, after=1)
    found = [document.key async for document in store.unfinished()]
    assert sorted(key.id for key in found) == sorted(key.id for key in keys)
    assert {key.partition for key in found} == {key.partition for key in keys}
    assert ground.counted("query")["query"] >= 4
    parts = [[document.key async for document in store.unfinished(part)] for part in KeyRange().split(3)]
    assert {key for part in parts for key in part} == {*found}
    assert max(map(len, parts)) < sum(map(len, parts)) == len(found)


async def test_a_foreign_item_does_not_hide_the_others(ground: CosmosGround) -> None:
    store, account = ground.store(), ground.account()
    container = await account.container("outbox")
    await container.create_item({"id": "theirs", "pk": "p", "pending": True})
    await store.write([Create(A, b'{"pending":true}')])
    assert sorted([document.key.id async for document in store.unfinished()]) == ["a", "theirs"]


async def test_a_key_that_is_wrong_and_a_container_that_is_missing_are_refused_with_the_cure(
    ground: CosmosGround,
) -> None:
    account = ground.account()
    missing = CosmosStateStore(lambda: account.container("missing"))
    with pytest.raises(Refused, match="create=True"):
        await missing.read(A)
    with pytest.raises(Refused, match="create=True"):
        await missing.write([Create(A, b"1")])


async def test_an_account_that_cannot_be_reached_was_sent_nothing(ground: CosmosGround) -> None:
    store = ground.store(timeout_s=2)
    await ground.emulator.stop()
    with pytest.raises(Unreachable):
        await store.write([Create(A, b"1")])
    with pytest.raises(Unreachable):
        await store.read(A)


async def test_requests_and_their_units_are_counted_by_kind(ground: CosmosGround) -> None:
    store = ground.store()
    etag = await version_of(store, Create(A, b"1"))
    await store.write([Replace(A, b"2", etag), Create(B, b"1")])
    await store.write([Create(A, b"2")])
    await store.read(A)
    await store.read(DocumentKey("p", "missing"))
    assert [document.key async for document in store.scan("p")] == [A, B]
    used = store.usage.by_kind
    assert {kind: (one.count, one.failed_count) for kind, one in used.items()} == {
        "create": (2, 1),
        "batch": (1, 0),
        "read": (2, 0),
        "query": (1, 0),
    }
    served = ground.emulator.usage()
    assert used["batch"].charge_ru == served["batch"].charge_ru > 10
    assert store.usage.charge_ru == pytest.approx(sum(served[name].charge_ru for name in served if name in OF_ITEMS))


OF_ITEMS = ("batch", "item.create", "item.read", "query")


# Answers that leave something out


class Answered(list[dict[str, Any]]):
    """What a batch is answered, as the SDK has it."""

    def get_response_headers(self) -> dict[str, str]:
        return {}


class Terse:
    """A container that answers writes without all versions."""

    async def execute_item_batch(self, operations: list[Any], partition: str) -> Answered:
        return Answered([{"eTag": "1"}, {}][: len(operations)])

    async def create_item(self, item: Any, *, response_hook: Any, **options: Any) -> None:
        response_hook({})


@pytest.mark.parametrize("count", [1, 2])
async def test_a_write_that_is_answered_without_a_version_is_unknown(count: int) -> None:
    async def container() -> Any:
        return Terse()

    creates = [Create(DocumentKey("p", str(n)), b"1") for n in range(count)]
    with pytest.raises(OutcomeUnknown, match="without"):
        await CosmosStateStore(container).write(creates)


class Throttling(Exception):
    """What the SDK raises for a request that is to come again after a time."""

    status_code, sub_status = 429, 0

    def __init__(self, pause_s: float) -> None:
        self.headers = {"x-ms-retry-after-ms": str(pause_s * 1_000)}


@pytest.mark.parametrize(("pause_s", "pauses_s"), [(60, []), (0.75, [0.75, 0.75])])
async def test_no_caller_waits_longer_for_throttling_than_the_limit(
    monkeypatch: pytest.MonkeyPatch, pause_s: float, pauses_s: list[float]
) -> None:
    monkeypatch.setattr(store, "FAILURES", (*FAILURES, Throttling))
    slept = list[float]()

    async def sleep(pause_s: float) -> None:
        slept.append(pause_s)

    async def container() -> Any:
        raise Throttling(pause_s)

    with pytest.raises(Throttled) as caught:
        await CosmosStateStore(container, sleep=sleep, chance=lambda: 0.0).read(A)
    assert slept == pauses_s and caught.value.retry_after_s == pause_s
