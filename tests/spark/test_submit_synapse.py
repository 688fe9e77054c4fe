"""The client of a Spark pool's batches: what it sends, what it concludes from each answer, what it never shows."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken

from function_app.settings import connect
from outbox import Engine
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.errors import OutcomeUnknown, Refused, Throttled
from outbox.spark import NotRunnable, RunId, RunRequest
from spark_jobs.common.arguments import HOST_VARIABLE
from spark_jobs.submitting import synapse
from spark_jobs.submitting.documents import RunDocument
from spark_jobs.submitting.places import documents_of
from spark_jobs.submitting.settings import SparkSettings, runs_over
from spark_jobs.submitting.synapse import (
    PAYLOAD_BYTES_MAX,
    LivyBatch,
    PoolSettings,
    SynapseBatches,
    _decoded,
    _error_of,
    identity_token,
)
from tests.spark.livy import TOKEN, Livy, token

RUN, REQUEST = RunId("nightly-1"), RunRequest("feed", ("--input", "transfers.csv"))


@pytest.fixture
async def livy() -> AsyncIterator[Livy]:
    async with Livy().serving() as serving:
        yield serving


async def test_what_is_asked_for_is_what_the_service_documents(livy: Livy) -> None:
    assert (await livy.client().create(RUN, REQUEST, within_s=1)).phase == "submitted"
    [batch] = livy.batches
    assert batch["args"] == ["--run", RUN, "feed", "--input", "transfers.csv"]
    assert batch["tags"] == {"outbox-run": RUN, "outbox-job": "feed"} and batch["name"] == f"outbox-{RUN}"
    body = json.loads(livy.client().payload(RUN, REQUEST))
    known = "name file className args jars pyFiles files archives conf tags artifactId driverMemory driverCores"
    assert body.keys() <= {*known.split(), "executorMemory", "executorCores", "numExecutors"}


async def test_a_batch_gets_all_that_its_pool_is_set_to() -> None:
    pool = PoolSettings(
        "bank", "small", "submitted.py", ("jobs.zip",), ("--runs", "cosmos:bank"), {"spark.a": "1"}, 8, "56g", 3
    )
    body = json.loads(SynapseBatches(pool, token).payload(RUN, REQUEST))
    assert body["args"] == ["--run", RUN, "--runs", "cosmos:bank", "feed", "--input", "transfers.csv"]
    assert (body["file"], body["pyFiles"], body["conf"]) == ("submitted.py", ["jobs.zip"], {"spark.a": "1"})
    assert [body[name] for name in ("driverCores", "executorCores", "numExecutors")] == [8, 8, 3]
    assert body["driverMemory"] == body["executorMemory"] == "56g"


async def test_of_several_batches_of_a_run_the_oldest_comes_first(livy: Livy) -> None:
    for _ in range(3):
        livy.made(tags={"outbox-run": RUN}, name="")
    livy.made(tags={"outbox-run": "another"}, name="")
    assert [batch.id for batch in await livy.client().find(RUN)] == ["1", "2", "3"]


async def test_a_token_that_takes_long_takes_it_from_the_time_in_which_a_request_begins(livy: Livy) -> None:
    now_s = [0.0]

    async def slow() -> AccessToken:
        now_s[0] += 30.0
        return await token()

    client = livy.client(monotonic_s=lambda: now_s[0])
    client._token = slow
    with pytest.raises(Throttled, match="no turn"):
        await client.create(RUN, REQUEST, within_s=1)
    assert livy.creates == 0


async def test_throttling_is_waited_out_within_the_window_and_not_beyond(livy: Livy) -> None:
    livy.faults = ["busy"]
    await livy.client().create(RUN, REQUEST, within_s=2)
    assert (livy.creates, len(livy.batches)) == (2, 1)
    livy.faults = ["busy"] * 9
    with pytest.raises(Throttled, match="429"):
        await livy.client().create(RunId("two"), REQUEST, within_s=0.4)
    assert len(livy.batches) == 1


@pytest.mark.parametrize("fault", ["lost", "dark", "late", "dusk", "broken"])
async def test_a_creation_whose_outcome_is_not_known_is_not_sent_again(fault: str, livy: Livy) -> None:
    livy.faults = [fault]
    with pytest.raises(OutcomeUnknown):
        await livy.client(request_s=10).create(RUN, REQUEST, within_s=20)  # so that it gets there on a busy machine
    assert livy.creates == 1


async def test_an_answer_that_is_late_is_an_unknown_outcome(livy: Livy) -> None:
    livy.reply_s = 0.5
    with pytest.raises(OutcomeUnknown, match="TimeoutError"):
        await livy.client(request_s=0.1).create(RUN, REQUEST, within_s=2)
    assert len(livy.batches) == 1


async def test_a_token_goes_to_no_other_address_than_the_workspaces(livy: Livy) -> None:
    livy.faults = ["moved"]
    with pytest.raises(Refused, match="307"):
        await livy.client().create(RUN, REQUEST, within_s=2)
    assert livy.creates == 1


async def test_no_connection_means_that_nothing_was_asked() -> None:
    nowhere = Livy(url="http://127.0.0.1:9").client()
    with pytest.raises(Throttled, match="nothing was asked"):
        await nowhere.create(RUN, REQUEST, within_s=0.2)


async def test_creations_keep_to_two_a_second(livy: Livy) -> None:
    client, began_s = livy.client(sleep=asyncio.sleep), time.monotonic()
    await asyncio.gather(*(client.create(RunId(f"r{n}"), REQUEST, within_s=5) for n in range(4)))
    assert time.monotonic() - began_s >= 1.5 and len(livy.batches) == 4


async def test_a_turn_that_comes_too_late_for_the_claim_is_not_taken(livy: Livy) -> None:
    client = livy.client(sleep=asyncio.sleep)
    found = await asyncio.gather(
        *(client.create(RunId(f"r{n}"), REQUEST, within_s=0.7) for n in range(4)), return_exceptions=True
    )
    assert [type(one) for one in found].count(Throttled) == 2 and len(livy.batches) == 2
    assert all(0 < one.retry_after_s < 5 for one in found if isinstance(one, Throttled))


async def test_what_is_larger_than_the_service_takes_is_refused_before_it_is_sent(livy: Livy) -> None:
    with pytest.raises(NotRunnable, match="write what the job needs to a file"):
        await livy.client().create(RUN, RunRequest("feed", ("x" * PAYLOAD_BYTES_MAX,)), within_s=1)
    assert livy.creates == 0


@pytest.mark.parametrize(
    ("status", "retry_after", "expected", "after_s"),
    [
        *((status, "", NotRunnable, None) for status in (400, 413, 422)),
        *((status, "", Refused, None) for status in (401, 403, 404, 409)),
        *((status, "", OutcomeUnknown, None) for status in (408, 500, 503)),
        (429, "7", Throttled, 7.0),
        (429, "Tue, 24 Nov 2026 06:00:00 GMT", Throttled, 0.0),
    ],
)
def test_what_an_answer_allows_to_conclude(
    status: int, retry_after: str, expected: type[Exception], after_s: float | None
) -> None:
    error = _error_of("POST batches", status, b"SharedAccessKey=k3y= " + b"x" * 5_000, retry_after)
    assert type(error) is expected and getattr(error, "retry_after_s", None) == after_s
    assert f"POST batches: {status}" in str(error) and "k3y" not in str(error) and len(str(error)) < 500


@pytest.mark.parametrize("answer", [None, b"", b"<html>busy</html>", b"[]", b'{"id": "one"}', b"\xff"])
def test_an_answer_that_is_none_leaves_the_outcome_unknown(answer: bytes | None) -> None:
    with pytest.raises(OutcomeUnknown, match="no LivyBatch"):
        _decoded(answer, LivyBatch)


async def test_a_question_is_asked_again_after_as_long_as_the_service_wants_and_not_for_ever() -> None:
    slept_s: list[float] = []

    async def sleep(pause_s: float) -> None:
        slept_s.append(pause_s)

    async def once(*_: Any, **__: Any) -> bytes:
        raise errors.pop(0)

    client = SynapseBatches(PoolSettings("bank-ws", "small", "f"), token, sleep=sleep, chance=lambda: 0.5)
    client._once = once  # type: ignore[method-assign]  # a service that answers so
    long, longer = (Throttled("busy", retry_after_s=pause_s) for pause_s in (7.0, 500.0))
    errors = [long, longer, OutcomeUnknown("no answer"), OutcomeUnknown("the fourth"), OutcomeUnknown("one more")]
    with pytest.raises(OutcomeUnknown, match="the fourth"):
        await client.get("1")
    assert slept_s == [7.0, 30.0, 2.0]


# The list


async def test_a_list_that_is_too_large_to_be_meant_is_not_taken_for_a_whole_one(
    livy: Livy, monkeypatch: pytest.MonkeyPatch
) -> None:
    others(livy, 50)
    monkeypatch.setattr(synapse, "PAGES_MAX", 2)
    with pytest.raises(OutcomeUnknown, match="use one of its own"):
        await livy.client().find(RUN)
    monkeypatch.setattr(synapse, "ANSWER_BYTES_MAX", 100)
    with pytest.raises(OutcomeUnknown, match="over 100 bytes"):
        await livy.client().find(RUN)


def others(livy: Livy, count: int) -> None:
    for number in range(count):
        livy.made(name=f"other-{number}", tags={"outbox-run": f"other-{number}"}, args=["--run", "x"])


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 19, 20, 21, 34, 35, 36, 70])
async def test_a_batch_is_found_on_every_page(count: int, livy: Livy) -> None:
    await livy.client().create(RUN, REQUEST, within_s=1)
    others(livy, count)
    assert [batch.id for batch in await livy.client().find(RUN)] == ["1"]
    assert await livy.client().find(RunId("nobody")) == []


async def test_a_batch_whose_tags_are_not_kept_is_found_by_its_name(livy: Livy) -> None:
    livy.keeps_tags = False
    await livy.client().create(RUN, REQUEST, within_s=1)
    await livy.client().create(RunId(f"{RUN}0"), REQUEST, within_s=2)
    assert [batch.id for batch in await livy.client().find(RUN)] == ["1"]


async def test_a_batch_is_found_while_others_come_and_go(livy: Livy) -> None:
    others(livy, 30)
    await livy.client().create(RUN, REQUEST, within_s=1)
    others(livy, 30)

    def comes_and_goes() -> None:
        if livy.pages < 40:  # then it is quiet
            livy.made(name="new", tags=None, args=["--run", "x"])
            del livy.batches[-7:-5]

    livy.before_page = comes_and_goes
    assert [batch.id for batch in await livy.client().find(RUN)] == ["31"]


async def test_a_list_that_shrinks_faster_than_it_is_read_proves_nothing(livy: Livy) -> None:
    others(livy, 400)
    quiet_at = 0

    def goes() -> None:
        if len(livy.batches) > quiet_at:
            del livy.batches[-30:]

    livy.before_page = goes
    with pytest.raises(OutcomeUnknown, match="faster than they can be listed"):
        await livy.client().find(RUN)
    quiet_at = len(livy.batches) - 40  # it is listed anew
    assert await livy.client().find(RUN) == []


# State


@pytest.mark.parametrize(
    ("state", "result", "phase"),
    [
        ("not_started", "Uncertain", "submitted"),
        ("starting", "Uncertain", "submitted"),
        ("running", "Uncertain", "running"),
        ("recovering", "Uncertain", "submitted"),
        ("success", "Succeeded", "succeeded"),
        ("dead", "Failed", "failed"),
        ("error", "Failed", "failed"),
        ("killed", "Cancelled", "cancelled"),
        ("dead", "Cancelled", "cancelled"),
        ("something_new", None, "unknown"),
        (None, None, "unknown"),
    ],
)
async def test_every_state_has_a_phase(state: str | None, result: str | None, phase: str, livy: Livy) -> None:
    made = livy.made(name="n", tags=None) | {"state": state, "result": result}
    livy.batches[0] = made
    found = await livy.client().get("1")
    assert found is not None and found.phase == phase


async def test_what_is_not_there_is_not_there_and_may_be_cancelled(livy: Livy) -> None:
    assert await livy.client().get("7") is None
    await livy.client().cancel("7")


async def test_why_a_batch_failed_is_reported_without_its_secrets(livy: Livy) -> None:
    errors = [{"message": "cannot reach Endpoint=sb://b/;SharedAccessKey=k3y= today", "errorCode": "X"}]
    livy.batches.append(livy.made(name="n", tags=None) | {"id": 2, "state": "dead", "errorInfo": errors})
    found = await livy.client().get("2")
    assert found is not None and "cannot reach" in found.detail and "k3y" not in found.detail


# Who asks


@pytest.mark.parametrize("url", ["http://synapse.example.org", "ftp://x", "My Workspace", "", "https://"])
def test_a_token_goes_only_where_it_is_safe(url: str) -> None:
    with pytest.raises(Refused, match="https://"):
        SynapseBatches(PoolSettings(url, "small", "f"), token)


def test_a_workspace_is_named_or_addressed() -> None:
    assert PoolSettings("bank-ws", "small", "f").url.startswith(
        "https://bank-ws.dev.azuresynapse.net/livyApi/versions/"
    )
    assert "/sparkPools/a%2Fb/batches" in PoolSettings("https://h.example.org/", "a/b", "f").url


async def test_an_identity_without_rights_is_refused_with_what_it_needs(livy: Livy) -> None:
    async def stranger() -> AccessToken:
        return AccessToken("other", 1 << 40)

    client = livy.client()
    client._token = stranger
    with pytest.raises(Refused, match="Synapse role"):
        await client.create(RUN, REQUEST, within_s=1)


async def test_no_log_and_no_error_shows_a_token(livy: Livy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = livy.client()
    livy.faults = ["lost", "broken"]
    for _ in range(2):
        with pytest.raises(OutcomeUnknown) as unknown:
            await client.create(RUN, REQUEST, within_s=1)
        assert TOKEN not in str(unknown.value) + repr(unknown.value.__cause__)
    await client.find(RUN)
    assert TOKEN not in caplog.text + repr(client) + repr(vars(client)["_settings"])


async def test_a_token_is_kept_while_it_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Credential:
        async def __aenter__(self) -> Credential:
            return self

        async def __aexit__(self, *error: object) -> None: ...

        async def get_token(self, scope: str) -> AccessToken:
            asked.append(scope)
            return AccessToken(f"t{len(asked)}", 1_000 * len(asked))

    monkeypatch.setattr("azure.identity.aio.DefaultAzureCredential", Credential)
    now = [0.0]
    held = identity_token(wall_s=lambda: now[0])
    assert [(await held()).token for _ in range(3)] == ["t1"] * 3
    now[0] = 701.0  # five minutes before it ends
    assert (await held()).token == "t2"
    assert asked == ["https://dev.azuresynapse.net/.default"] * 2


# Through Cosmos DB


@pytest.fixture
async def cosmos(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """The settings of an application on the emulator."""
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        environ = {
            "OUTBOX_COSMOS": emulator.connection.connection_string,
            "OUTBOX_SERVICEBUS": "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=n;SharedAccessKey=k",
            "OUTBOX_CREATE": "1",
        }
        backend: Any = connect(environ)
        async with backend:
            await backend.operations._prepare()
        yield environ


async def test_runs_are_kept_in_cosmos_where_a_job_finds_them(cosmos: dict[str, str]) -> None:
    submitter, job = (documents_of("cosmos:bank", cosmos) for _ in range(2))
    document = RunDocument(job="feed", asked_ms=1)
    assert await submitter.write(RUN, document, "") and not await job.write(RUN, document, "")
    seen = await job.read(RUN)
    assert seen is not None and seen.document == document
    ended = RunDocument(job="feed", asked_ms=1, ended="succeeded")
    assert await job.write(RUN, ended, seen.version) and not await submitter.write(RUN, document, seen.version)
    assert await job.read(RunId("other")) is None


def test_each_setting_is_read_from_the_variable_of_its_name() -> None:
    texts = {"RUNS": "cosmos:x", "FILE": "f.py", "PY_FILES": "a.zip, b.zip", "WORKSPACE": "w", "POOL": "p"}
    texts |= {"SECRETS": "A=b/c", "SETTINGS": "D=e,", "EXECUTORS": "1", "CORES": "1000", "MEMORY": "56g", "MASTER": "m"}
    assert SparkSettings.of({"OUTBOX_SPARK": " Local", **{f"OUTBOX_SPARK_{name}": texts[name] for name in texts}}) == (
        SparkSettings(
            target="local", runs="cosmos:x", file="f.py", python_files=("a.zip", "b.zip"), workspace="w", pool="p",
            secrets=("A=b/c",), settings=("D=e",), executors=1, cores=1000, memory="56g", master="m",
        )
    )  # fmt: skip
    assert SparkSettings.of({}) == SparkSettings()
    assert SparkSettings.of({"OUTBOX_SPARK": "synapse", "OUTBOX_DATABASE": "x"}).runs == "cosmos:x"


@pytest.mark.parametrize("text", ["0", "1001", "-1", "2.5", "many"])
def test_a_number_of_cores_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=f"OUTBOX_SPARK_CORES is '{text}', not a number from 1 to 1000"):
        SparkSettings.of({"OUTBOX_SPARK_CORES": text})


def test_a_claim_lasts_as_long_as_the_requests_of_its_target(tmp_path: Path) -> None:
    environ = {"OUTBOX_COSMOS": "AccountEndpoint=https://b;AccountKey=aw=="}
    pool = SparkSettings(target="synapse", runs="cosmos:b", file="f", workspace="work", pool="p")
    far: Any = runs_over(pool, environ)
    near: Any = runs_over(SparkSettings(target="local", runs=str(tmp_path)), {})
    with pytest.raises(Refused, match="runs on Synapse are kept in Cosmos DB"):
        runs_over(SparkSettings(target="synapse", runs=str(tmp_path), file="f", workspace="work", pool="p"), environ)
    assert (far._batches._request_s, far.timing.request_s, far.timing.claim_s, near.timing.claim_s) == (30, 30, 90, 10)


async def test_submitters_through_cosmos_make_one_batch(
    cosmos: dict[str, str], livy: Livy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_jobs.submitting.synapse.identity_token", lambda: token)
    chosen = {
        "OUTBOX_SPARK": "synapse",
        "OUTBOX_SPARK_WORKSPACE": livy.url,
        "OUTBOX_SPARK_POOL": "small",
        "OUTBOX_SPARK_FILE": "abfss://jobs@lake/submitted.py",
        "OUTBOX_SPARK_SECRETS": "OUTBOX_SERVICEBUS=vault/send-key/linked",
        "OUTBOX_SPARK_SETTINGS": "AZURE_TENANT_ID=t1, AZURE_CLIENT_ID=c1",
        "OUTBOX_SPARK_EXECUTORS": "7",
        "OUTBOX_SPARK_CORES": "8",
        "OUTBOX_SPARK_MEMORY": "56g",
    }
    environ = {**cosmos, HOST_VARIABLE: "b.servicebus.windows.net"}
    runs = [runs_over(SparkSettings.of(chosen), environ) for _ in range(3)]
    reported = await asyncio.gather(*(one.submit(RUN, REQUEST) for one in runs), return_exceptions=True)
    assert len(livy.batches) == 1 and [getattr(one, "batch", "") for one in reported].count("1") >= 1
    [body], args = livy.batches, livy.batches[0]["args"]
    assert [body[name] for name in ("numExecutors", "executorCores", "executorMemory")] == [7, 8, "56g"]
    assert args[2:6] == ["--runs", "cosmos:bank", "--setting", f"{HOST_VARIABLE}=b.servicebus.windows.net"]
    assert args[6:10] == ["--setting", "AZURE_TENANT_ID=t1", "--setting", "AZURE_CLIENT_ID=c1"]
    assert args[10:12] == ["--secret", "OUTBOX_SERVICEBUS=vault/send-key/linked"]
    with pytest.raises(Refused, match="--setting takes"):
        runs_over(SparkSettings.of({**chosen, "OUTBOX_SPARK_SETTINGS": "PATH=/"}), environ)
    assert {(await one.submit(RUN, REQUEST)).batch for one in runs} == {"1"}
