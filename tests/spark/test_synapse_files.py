"""The artifacts of the workspace agree with the code, the templates and each other."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
from pathlib import Path
from string import Template
from typing import Any

import pytest

from outbox.spark import run_request
from spark_jobs import package, submitted
from spark_jobs.common.arguments import connection_of
from spark_jobs.common.containers import Container
from spark_jobs.common.identity import CredentialSource, Principal, principal_of
from spark_jobs.common.places import joined, place_of
from spark_jobs.sweep import ADDRESSES

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "infra" / "synapse"
JOBS = ("consume", "feed", "reconcile", "sweep")
PLACES = dict.fromkeys(("LAKE", "VAULT", "TENANT", "CLIENT"), "x") | {
    "COSMOS": "https://b.documents.azure.com",
    "BUS": "b.servicebus.windows.net",
    "BLOBS": "https://b.blob.core.windows.net",
}


def read(name: str) -> dict[str, Any]:
    """A file with its placeholders filled in; one that the page does not name is an error."""
    found: dict[str, Any] = json.loads(Template((FOLDER / name).read_text()).substitute(PLACES))
    return found


def check_arguments(arguments: list[str], job: str) -> None:
    """What a batch is started with, by the parsers that will read it."""
    parsed = submitted.parser().parse_args(arguments)
    assert parsed.begin and parsed.runs == "cosmos:bank" and parsed.job == job
    run_request(parsed.job, arguments)  # nothing that looks like a secret
    assert all(re.fullmatch(r"[A-Z_]+=x/[\w-]+/keyvault", secret) for secret in parsed.secret)
    environ = {"AZURE_CLIENT_SECRET": "fetched"}
    submitted.put_settings(parsed.setting, environ)
    assert [secret.partition("=")[0] for secret in parsed.secret] == ["AZURE_CLIENT_SECRET"]
    check_sign_in(job, environ)
    if importlib.util.find_spec(f"spark_jobs.{job}") is None:
        pytest.skip(f"spark_jobs.{job} is not part of this version")
    given = importlib.import_module(f"spark_jobs.{job}").parser().parse_args(parsed.arguments)
    named = [getattr(given, name) for name in ("input", "output", "ledger") if hasattr(given, name)]
    check_places([place for each in named for place in ([each] if isinstance(each, str) else each)], environ)


def check_places(addresses: list[str], environ: dict[str, str]) -> None:
    """Files are in the lake's container for them, asked for by the principal, and progress is beside them."""
    for address in addresses:
        kept = place_of(joined(address, ".feed/transfers"), environ)
        assert isinstance(kept, Container) and kept.account.name == "x" and kept.container == "data"
        assert kept.account.credential == Principal("x", "x", "fetched") and kept.account.url.startswith(
            "https://x.blob."
        )


def check_sign_in(job: str, environ: dict[str, str]) -> None:
    """A job that speaks to a queue finds a host name and its principal: the templates switch keys off."""
    if job in ("feed", "consume"):
        source = CredentialSource.of(connection_of(argparse.Namespace(connection=""), environ), environ)
        assert source == CredentialSource(PLACES["BUS"], Principal("x", "x", "fetched"))
    elif job == "sweep":
        assert {name + tail for name, tail in ADDRESSES.items()} <= environ.keys() and principal_of(environ)


def test_there_is_a_definition_of_every_job_and_no_other() -> None:
    assert sorted(path.stem for path in (FOLDER / "jobs").glob("*.json")) == list(JOBS)


@pytest.mark.parametrize("job", JOBS)
def test_a_definition_is_started_as_the_job_expects_it(job: str) -> None:
    made = read(f"jobs/{job}.json")
    assert made["name"] == f"outbox-{job}"
    check_arguments(made["properties"]["jobProperties"]["args"], job)


@pytest.mark.parametrize("job", JOBS)
def test_a_definition_has_what_its_model_requires_and_nothing_that_it_lacks(job: str) -> None:
    properties = read(f"jobs/{job}.json")["properties"]
    wanted = {"description", "targetBigDataPool", "requiredSparkVersion", "language", "folder", "jobProperties"}
    assert properties.keys() == wanted
    required = {"file", "driverMemory", "driverCores", "executorMemory", "executorCores", "numExecutors"}
    assert required <= properties["jobProperties"].keys() <= required | {"name", "pyFiles", "args", "conf"}


@pytest.mark.parametrize("job", JOBS)
def test_a_definition_and_the_templates_mean_the_same_pool_and_files(job: str) -> None:
    properties = read(f"jobs/{job}.json")["properties"]
    pool = (ROOT / "infra/modules/synapse-pool.bicep").read_text()
    assert f"name: '{properties['targetBigDataPool']['referenceName']}'" in pool
    assert f"sparkVersion: '{properties['requiredSparkVersion']}'" in pool
    main = (ROOT / "infra/main.bicep").read_text()
    assert "var sparkContainer = 'data'" in main and "containers: ['synapse', sparkContainer]" in main
    files = [properties["jobProperties"]["file"], *properties["jobProperties"]["pyFiles"]]
    assert [file.rpartition("/")[2] for file in files] == ["submitted.py", package.ZIP_NAME]
    for file in files:
        assert file.startswith("abfss://synapse@x.dfs.") and f"/jobs/{file.rpartition('/')[2]}'" in main


def test_the_pipeline_runs_the_definitions_under_its_own_run_id() -> None:
    activities = read("pipeline.json")["properties"]["activities"]
    assert [activity["name"] for activity in activities] == ["feed", "consume", "reconcile"]
    for before, activity in zip([None, *activities], activities, strict=False):
        job, chosen = activity["name"], activity["typeProperties"]
        assert activity["type"] == "SparkJob" and activity["policy"]["retry"] == 0
        assert chosen["sparkJob"] == {"referenceName": f"outbox-{job}", "type": "SparkJobDefinitionReference"}
        assert [one["activity"] for one in activity["dependsOn"]] == ([before["name"]] if before else [])
        assert chosen["args"][2] == {"value": f"@concat('{job}-', pipeline().RunId)", "type": "Expression"}
        check_arguments([*chosen["args"][:2], f"{job}-1", *chosen["args"][3:]], job)
        by_hand = read(f"jobs/{job}.json")["properties"]["jobProperties"]["args"]
        assert [*chosen["args"][:1], *chosen["args"][3:]] == by_hand


def test_the_trigger_starts_the_pipeline() -> None:
    trigger = read("trigger.json")["properties"]
    assert trigger["type"] == "ScheduleTrigger"
    [started] = trigger["pipelines"]
    assert started["pipelineReference"]["referenceName"] == read("pipeline.json")["name"]


def test_every_placeholder_is_set_by_the_page() -> None:
    page = (FOLDER / "README.md").read_text()
    used = {name for path in FOLDER.rglob("*.json") for name in re.findall(r"\$\{(\w+)\}", path.read_text())}
    assert used == PLACES.keys() and all(re.search(rf"^export .*\b{name}=", page, re.MULTILINE) for name in used)
