"""The settings by which Spark runs are started, as an environment says them.

OUTBOX_SPARK                local | synapse; unset: the Functions app starts no jobs
OUTBOX_SPARK_RUNS           where runs are kept: cosmos:DATABASE (Synapse's default, with OUTBOX_DATABASE), or a
                            folder of this machine (spark-runs)
OUTBOX_SPARK_FILE           the main definition, spark_jobs/submitted.py: abfss://... on Synapse
OUTBOX_SPARK_PY_FILES       the zip that `python -m spark_jobs.package` makes; several with commas
OUTBOX_SPARK_WORKSPACE      the workspace's name, or its address
OUTBOX_SPARK_POOL           the pool's name
OUTBOX_SPARK_SECRETS        what the job fetches from Key Vault: VARIABLE=vault/name/linked-service, with commas
OUTBOX_SPARK_SETTINGS       what the job is told: VARIABLE=TEXT (AZURE_TENANT_ID, AZURE_CLIENT_ID), with commas; the
                            addresses that this environment has (OUTBOX_COSMOS__accountEndpoint and its like) it is told
OUTBOX_SPARK_EXECUTORS      how many (2), each of OUTBOX_SPARK_CORES (4) and OUTBOX_SPARK_MEMORY (28g)
OUTBOX_SPARK_MASTER         of a local run (local[2])
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

from outbox.errors import Refused
from outbox.spark import SparkRuns
from spark_jobs.submitting.documents import FolderRuns
from spark_jobs.submitting.once import Batches, OnceRuns, Timing
from spark_jobs.submitting.places import documents_of

TARGETS = ("local", "synapse")
FOLDER = "spark-runs"
ADDRESSES = (
    "OUTBOX_COSMOS__accountEndpoint",
    "OUTBOX_SERVICEBUS__fullyQualifiedNamespace",
    "OUTBOX_BLOBS__blobServiceUri",
)
"""Where things are, which is the same for whoever submits and for the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Where runs are started, and what with."""

    target: str = ""
    runs: str = ""
    file: str = ""
    python_files: tuple[str, ...] = ()
    workspace: str = ""
    pool: str = ""
    secrets: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    executors: int = 2
    cores: int = 4
    memory: str = "28g"
    master: str = "local[2]"

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """The settings of an environment.

        Raises:
            Refused: one of them cannot be meant.
        """
        target = environ.get("OUTBOX_SPARK", "").strip().lower()
        if target not in ("", *TARGETS):
            raise Refused(f"OUTBOX_SPARK is {target[:40]!r}; say {' or '.join(TARGETS)}, or leave it out")
        database = environ.get("OUTBOX_DATABASE") or "bank"
        return cls(
            target=target,
            runs=environ.get("OUTBOX_SPARK_RUNS", "") or (f"cosmos:{database}" if target == "synapse" else ""),
            file=environ.get("OUTBOX_SPARK_FILE", ""),
            python_files=_several(environ.get("OUTBOX_SPARK_PY_FILES", "")),
            workspace=environ.get("OUTBOX_SPARK_WORKSPACE", ""),
            pool=environ.get("OUTBOX_SPARK_POOL", ""),
            secrets=_several(environ.get("OUTBOX_SPARK_SECRETS", "")),
            settings=_several(environ.get("OUTBOX_SPARK_SETTINGS", "")),
            executors=_count(environ, "OUTBOX_SPARK_EXECUTORS", 2),
            cores=_count(environ, "OUTBOX_SPARK_CORES", 4),
            memory=environ.get("OUTBOX_SPARK_MEMORY") or "28g",
            master=environ.get("OUTBOX_SPARK_MASTER") or "local[2]",
        )


def runs_over(settings: SparkSettings, environ: Mapping[str, str]) -> SparkRuns:
    """The runs by these settings; nothing is opened yet.

    Raises:
        Refused: a setting is missing; the text names it.
    """
    place = settings.runs or FOLDER
    documents = documents_of(place, environ)
    if isinstance(documents, FolderRuns):
        place = str(documents.path)
    timing = Timing()
    if settings.target == "synapse":
        batches = _pool(settings, place, timing, environ)
    else:
        batches = _machine(settings, place, environ)
        timing = Timing(window_s=5.0, request_s=2.0, settle_s=3.0)  # what is not there once it was asked for never will
    return OnceRuns(
        documents,
        batches,
        now_ms=lambda: time.time_ns() // 1_000_000,
        monotonic_s=time.monotonic,
        new_owner=lambda: uuid4().hex,
        timing=timing,
    )


def _pool(settings: SparkSettings, place: str, timing: Timing, environ: Mapping[str, str]) -> Batches:
    from spark_jobs.submitted import put_settings
    from spark_jobs.submitting.synapse import PoolSettings, SynapseBatches, identity_token

    needed = {"WORKSPACE": settings.workspace, "POOL": settings.pool, "FILE": settings.file}
    missing = [f"OUTBOX_SPARK_{name}" for name, value in needed.items() if not value]
    if missing:
        raise Refused(f"{', '.join(missing)} must be set to start runs on Synapse")
    if not place.startswith("cosmos:"):
        raise Refused("runs on Synapse are kept in Cosmos DB, where both sides reach them; set OUTBOX_SPARK_RUNS")
    put_settings(settings.settings, {})  # what the job would refuse is refused before it is started
    told = [*(f"{name}={environ[name]}" for name in ADDRESSES if environ.get(name)), *settings.settings]
    arguments = ["--runs", place, *(part for setting in told for part in ("--setting", setting))]
    arguments += [part for secret in settings.secrets for part in ("--secret", secret)]
    pool = PoolSettings(
        settings.workspace,
        settings.pool,
        settings.file,
        settings.python_files,
        tuple(arguments),
        cores=settings.cores,
        memory=settings.memory,
        executors=settings.executors,
    )
    return SynapseBatches(pool, identity_token(), request_s=timing.request_s)


def _machine(settings: SparkSettings, place: str, environ: Mapping[str, str]) -> Batches:
    from spark_jobs.submitting.local import LocalBatches, LocalSettings

    folder = FOLDER if place.startswith("cosmos:") else f"{place}/batches"
    given = {"file": settings.file} if settings.file else {}
    chosen = LocalSettings(
        folder=folder,
        environ=dict(environ),
        python_files=settings.python_files,
        arguments=("--runs", place),
        master=settings.master,
        **given,
    )
    return LocalBatches(chosen)


def _several(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _count(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environ.get(name, "")
    if text and not (text.isdecimal() and 0 < int(text) <= 1_000):
        raise Refused(f"{name} is {text[:40]!r}, not a number from 1 to 1000")
    return int(text) if text else otherwise
