"""host.json and the settings: limits that hold each other, and errors that name what is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from function_app.settings import connect, read
from outbox import azure
from outbox.azure.blobs import AzureBlobStore
from outbox.azure.connecting import AzureBackend
from outbox.azure.cosmos.account import CosmosAccount
from outbox.errors import Refused
from outbox.ports import NoBlobs
from outbox.runtime.commit.sweeper import GRACE_S
from tools.local_functions.settings import read_host_file

ROOT = Path(__file__).resolve().parents[2]
LOCAL: dict[str, str] = json.loads((ROOT / "local.settings.json.example").read_text())["Values"]


def test_the_host_gives_up_an_invocation_before_its_lock_and_after_its_own_limit() -> None:
    host, settings = read_host_file(ROOT), read(LOCAL)
    assert settings.attempt_s + settings.rest_s < host.timeout_s < host.renew_s == settings.lock_s


def test_nothing_is_prefetched_and_success_completes() -> None:
    content: dict[str, Any] = json.loads((ROOT / "host.json").read_text())
    bus = content["extensions"]["serviceBus"]
    assert (bus["prefetchCount"], bus["autoCompleteMessages"]) == (0, True)
    assert content["extensionBundle"]["version"] == "[4.*, 5.0.0)"
    assert content["extensions"]["http"]["routePrefix"] == ""  # entries have the same paths everywhere


def test_the_example_has_all_that_is_needed_and_reads_as_a_backend() -> None:
    backend = connect(LOCAL)
    assert isinstance(backend, AzureBackend) and isinstance(backend.blobs, AzureBlobStore)
    assert isinstance(connect(LOCAL | {"OUTBOX_BLOBS": ""}).ports().blobs, NoBlobs)
    for given, name in (({}, "bank"), ({"OUTBOX_DATABASE": ""}, "bank"), ({"OUTBOX_DATABASE": "shop"}, "shop")):
        backend = connect(LOCAL | given)
        assert isinstance(backend, AzureBackend)
        accounts = [part for part in backend._closing if isinstance(part, CosmosAccount)]
        assert [account.database for account in accounts] == [name]
    assert LOCAL["OUTBOX_COSMOS"].split("AccountKey=")[1] not in repr(backend) + repr(read(LOCAL))


def test_what_is_missing_is_named_all_at_once() -> None:
    with pytest.raises(
        Refused, match=re.escape("OUTBOX_SERVICEBUS or OUTBOX_SERVICEBUS__fullyQualifiedNamespace; OUT")
    ):
        read({"FUNCTIONS_WORKER_RUNTIME": "python"})
    with pytest.raises(Refused, match="OUTBOX_COSMOS__accountEndpoint"):
        connect({"OUTBOX_SERVICEBUS": "Endpoint=sb://localhost"})
    read({})  # no Functions host: `outbox run function_app.bank:app` needs none of it


def test_a_setting_that_is_no_number_is_named() -> None:
    with pytest.raises(Refused, match=r"OUTBOX_SWEEP_GRACE_S is 's{40}', not a number"):  # cut, for it may be a secret
        read({"OUTBOX_SWEEP_GRACE_S": "s" * 41})
    assert [read({"OUTBOX_SWEEP_GRACE_S": text}).sweep_grace_s for text in ("", "0", "90.5")] == [GRACE_S, 0, 90.5]


def test_states_have_a_container_of_their_own_where_a_setting_names_it() -> None:
    for settings, is_apart in ((LOCAL, False), (LOCAL | {"OUTBOX_STATES": "accounts"}, True)):
        backend = connect(settings)
        assert isinstance(backend, AzureBackend) and (backend.infrastructure is not None) is is_apart


def test_a_dispatch_ledger_is_kept_where_a_setting_says_so_and_states_lie_beside_their_records() -> None:
    for text, is_kept in (("", False), ("0", False), ("1", True)):
        backend = connect(LOCAL | {"OUTBOX_DISPATCH_LEDGER": text})
        assert isinstance(backend, AzureBackend) and backend.ports().store.capabilities.dispatch_ledger is is_kept
    with pytest.raises(Refused, match="leave out OUTBOX_STATES or the ledger"):
        connect(LOCAL | {"OUTBOX_DISPATCH_LEDGER": "1", "OUTBOX_STATES": "accounts"})


@pytest.mark.parametrize(
    ("text", "is_made"),
    [(None, False), ("", False), ("0", False), ("no", False), ("1", True), ("true", True), ("Yes", True)],
)
def test_queues_and_containers_are_made_only_where_a_setting_says_so(
    monkeypatch: pytest.MonkeyPatch, text: str | None, is_made: bool
) -> None:
    monkeypatch.setattr(azure, "connect", lambda **given: given["create"])
    settings = {name: value for name, value in LOCAL.items() if name != "OUTBOX_CREATE"}
    assert connect(settings if text is None else settings | {"OUTBOX_CREATE": text}) is is_made  # type: ignore[comparison-overlap]  # a double


def test_each_setting_is_handed_on_and_what_may_be_left_out_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(azure, "connect", dict)
    monkeypatch.setitem(connect.__globals__, "PLACE", place := object())
    least: Any = connect({"OUTBOX_SERVICEBUS": "bus", "OUTBOX_COSMOS__accountEndpoint": "cosmos"})
    assert least == {
        **{"servicebus": "bus", "cosmos": "cosmos", "blobs": None, "database": "bank", "states": None, "place": None},
        **{"dispatch_ledger": False, "create": False},
    }
    named = {
        **{"OUTBOX_SERVICEBUS": "", "OUTBOX_SERVICEBUS__fullyQualifiedNamespace": "bus"},
        **{"OUTBOX_COSMOS": "first", "OUTBOX_COSMOS__accountEndpoint": "second"},
        **{"OUTBOX_BLOBS__blobServiceUri": "blobs", "OUTBOX_DATABASE": "shop", "OUTBOX_STATES": "apart"},
    }
    most: Any = connect(named)
    parts = {"cosmos": "first", "blobs": "blobs", "database": "shop", "states": "apart", "place": place}
    assert most == least | parts


def test_under_a_host_it_is_known_whether_there_are_blobs() -> None:
    host: dict[str, str] = LOCAL | {"FUNCTIONS_WORKER_RUNTIME": "python"}
    assert [read(each).has_blobs for each in (host, host | {"OUTBOX_BLOBS": ""}, {})] == [True, False, None]
    assert read(host | {"OUTBOX_BLOBS": "", "OUTBOX_BLOBS__blobServiceUri": "https://b"}).has_blobs is True


def test_settings_are_those_of_the_start_whatever_the_environment_becomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(azure, "connect", lambda **given: given["database"])
    settings = read(environment := dict(LOCAL))
    environment["OUTBOX_DATABASE"] = "other"
    assert settings.connect() == LOCAL["OUTBOX_DATABASE"]  # type: ignore[comparison-overlap]  # a double


def test_settings_hold_the_schedule_and_no_secret_shows() -> None:
    settings = read({"OUTBOX_SWEEP": "0 0 3 * * *", "OUTBOX_COSMOS": "AccountKey=secret"})
    assert read({}).sweep_schedule == "30 * * * * *" and settings.sweep_schedule == "0 0 3 * * *"
    assert "secret" not in repr(settings)
