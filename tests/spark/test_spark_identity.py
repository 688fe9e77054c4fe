"""A host name is signed in to, by whoever the job is; what was lent ends, and no secret or token is shown or sent."""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.core.pipeline.transport import HttpRequest, RequestsTransport, RequestsTransportResponse
from azure.cosmos._base import create_scope_from_url
from azure.identity import DefaultAzureCredential
from azure.servicebus._common.constants import JWT_TOKEN_SCOPE
from azure.storage.blob._shared.constants import STORAGE_OAUTH_SCOPE

from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.errors import OutcomeUnknown, Refused
from spark_jobs.common import identity
from spark_jobs.common.arguments import CONNECTION_VARIABLE, HOST_VARIABLE, connection_of
from spark_jobs.common.identity import SERVICEBUS_SCOPE, Access, CredentialSource, Lent, LentTokens, Principal, lend
from spark_jobs.common.patience import GaveUpError
from spark_jobs.consume import consume
from spark_jobs.feed import Pace, feed
from spark_jobs.feeding.sending import Outgoing
from spark_jobs.feeding.shares import Sending
from spark_jobs.ledger import read_ledger
from spark_jobs.sweep import backend_of
from spark_jobs.sweep import parser as sweep_parser

pytestmark = pytest.mark.slow


HOST = "bank.servicebus.windows.net"
NOW_S = 1_790_000_000
PRINCIPAL = {"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client", "AZURE_CLIENT_SECRET": "s3cret"}


class Directory:
    """Who gives tokens; it can not be sent to an executor."""

    def __init__(self, life_s: int = 3_600, error: Exception | None = None) -> None:
        self.asked: list[str] = []
        self.life_s = life_s
        self.error = error

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        self.asked += scopes
        if self.error is not None:
            raise self.error
        return AccessToken("t0ken", int(time.time()) + self.life_s)

    def __reduce__(self) -> Any:
        raise TypeError("a credential went into a closure")


def host_of(connection: str) -> str:
    return connection.partition("sb://")[2].partition(";")[0]


def frame_of(spark: Any, folder: Path, count: int) -> Any:
    path = folder / "transfers.csv"
    path.write_text("id,amount\n" + "".join(f"t{number},{number}\n" for number in range(count)))
    return spark.read.schema("id string, amount bigint").csv(str(path), header=True)


@pytest.mark.spark
def test_a_host_name_is_fed_and_drained_with_a_token_lent_for_each_spark_job(
    spark: Any, broker: Any, tmp_path: Path
) -> None:
    directory = Directory()
    given: dict[str, Any] = {"queue": "signed", "connection": host_of(broker.connection), "credential": directory}
    sent = feed(frame_of(spark, tmp_path, 12), type="Transfer", id="id", pace=Pace(chunks=3), **given)
    assert (sent.accepted, directory.asked) == (12, [SERVICEBUS_SCOPE] * 3)
    received = consume(spark, output=str(tmp_path / "ledger"), idle_s=1, **given)
    assert received.added == 12 and set(directory.asked) == {SERVICEBUS_SCOPE}
    assert read_ledger(spark, tmp_path / "ledger").count() == 12


@pytest.mark.spark
def test_a_job_that_cannot_sign_in_says_so_with_the_cure_and_goes_on_when_it_can(
    spark: Any, broker: Any, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"queue": "signed", "connection": host_of(broker.connection)}
    frame, wrong = frame_of(spark, tmp_path, 3), Directory(error=ClientAuthenticationError("AADSTS7000215: wrong"))
    with pytest.raises(OutcomeUnknown, match=r"chunk 1 of 1: cannot sign in .*AADSTS7000215.*AZURE_CLIENT_SECRET"):
        feed(frame, type="T", id="id", credential=wrong, **given)
    with pytest.raises(OutcomeUnknown, match=r"queue signed: cannot sign in .*AZURE_CLIENT_SECRET"):
        consume(spark, output=str(tmp_path / "ledger"), idle_s=1, credential=wrong, **given)
    assert feed(frame, type="T", id="id", credential=Directory(), **given).accepted == 3
    assert len(broker.take("signed")) == 3


@pytest.mark.spark
def test_a_token_that_is_over_is_reported_by_the_executor_at_once(spark: Any, broker: Any, tmp_path: Path) -> None:
    given: dict[str, Any] = {"queue": "signed", "connection": host_of(broker.connection)}
    with pytest.raises(OutcomeUnknown, match=r"the driver lent .* is over.*--chunks") as reported:
        feed(frame_of(spark, tmp_path, 1), type="T", id="id", credential=Directory(life_s=5), **given)
    assert "t0ken" not in str(reported.value)


async def test_a_token_that_the_bus_refuses_is_reported_with_the_role() -> None:
    async with Engine.in_memory() as engine, ServiceBusServer(engine, key="a-key") as server:
        engine.declare(QueueSettings("orders"))
        access = CredentialSource.of(f"127.0.0.1:{server.port}", {}, Directory()).access()
        outgoing = Outgoing(Sending(access, "orders", "Order", timeout_s=30))
        with pytest.raises(GaveUpError, match="Azure Service Bus Data Sender") as reported:
            await asyncio.to_thread(outgoing.add, "o1", "{}", 1, None)
        await asyncio.to_thread(outgoing.close)
    assert "t0ken" not in str(reported.value)


def test_without_a_credential_on_the_driver_an_executor_signs_in_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory()
    monkeypatch.setattr(identity, "own_credential", lambda: directory)
    access = CredentialSource.of(HOST, {}).access()
    with access.client() as client:
        assert client.fully_qualified_namespace == HOST and directory.asked == [SERVICEBUS_SCOPE]


def test_an_executor_without_an_identity_is_reported_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PRINCIPAL:
        monkeypatch.delenv(name, raising=False)
    no_client = DefaultAzureCredential(
        exclude_managed_identity_credential=True,
        exclude_developer_cli_credential=True,
        exclude_cli_credential=True,
        exclude_powershell_credential=True,
        exclude_shared_token_cache_credential=True,
        exclude_visual_studio_code_credential=True,
        exclude_broker_credential=True,
    )
    monkeypatch.setattr(identity, "own_credential", lambda: no_client)
    with pytest.raises(GaveUpError, match=rf"cannot sign in at {HOST}.*AZURE_CLIENT_SECRET on the driver"):
        Access(HOST).client()


def test_a_directory_that_does_not_answer_is_an_outage_on_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "own_credential", lambda: Directory(error=ServiceRequestError("no route")))
    with pytest.raises(ConnectionError, match="no route"):
        Access(HOST).client()


def test_a_token_leaves_this_machine_by_tls_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert identity.is_emulator(f"127.0.0.1:{server.getsockname()[1]}")
    assert identity.is_emulator("localhost:5672") and identity.is_emulator("[::1]:5672")
    for host in (HOST, f"{HOST}:5672", "127.0.0.1", "127.0.0.1.example.org:5672", "localhost.example.org:5672"):
        assert not identity.is_emulator(host)
    with Access(HOST, lend(Directory(), [SERVICEBUS_SCOPE])).client() as client:
        assert client._config.use_tls and client._config.retry_total == 0
    with Access("Endpoint=sb://b.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k").client() as client:
        assert client._config.retry_total == 0  # a job repeats by itself, under the same ids


def test_what_a_directory_was_asked_is_in_no_error() -> None:
    with pytest.raises(GaveUpError, match="cannot sign in") as told:
        lend(Directory(error=ClientAuthenticationError("refused")), [SERVICEBUS_SCOPE])
    assert told.value.__cause__ is None and told.value.__suppress_context__


@pytest.mark.parametrize(
    "address", [f"sb://{HOST}", f"https://{HOST}/", f"{HOST}:5671", "bank", "SharedAccessKey=c2VjcmV0", "a b.net", ""]
)
def test_an_address_that_is_neither_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(Refused, match=r"bank\.servicebus\.windows\.net.*Endpoint=sb://") as reported:
        CredentialSource.of(address, {})
    assert "c2VjcmV0" not in str(reported.value)


def test_the_driver_is_the_service_principal_of_its_environment() -> None:
    source = CredentialSource.of(HOST, PRINCIPAL)
    assert source.credential == Principal("tenant", "client", "s3cret")
    given = Directory()
    assert CredentialSource.of(HOST, PRINCIPAL, given).credential is given  # a notebook's own comes first
    assert CredentialSource.of(HOST, {"AZURE_CLIENT_ID": "an identity's"}).credential is None
    assert CredentialSource.of("Endpoint=sb://b/;SharedAccessKey=k", PRINCIPAL).access().lent is None
    with pytest.raises(Refused, match=r"AZURE_CLIENT_SECRET is set and AZURE_TENANT_ID and AZURE_CLIENT_ID not"):
        CredentialSource.of(HOST, {"AZURE_CLIENT_SECRET": "s3cret"})


def test_a_secret_is_neither_shown_nor_sent_and_a_token_is_not_shown() -> None:
    source = CredentialSource.of(HOST, PRINCIPAL)
    with pytest.raises(TypeError, match="stays on the driver"):
        pickle.dumps(source)
    access = CredentialSource.of(HOST, {}, Directory()).access()
    sending = Sending(access, "q", "T", 1.0)
    assert b"t0ken" in pickle.dumps(sending)
    shown = repr(source) + repr(source.credential) + repr(access) + repr(sending)
    assert "Access" in shown and "s3cret" not in shown and "t0ken" not in shown


def test_lent_tokens_are_for_their_services_and_until_they_end() -> None:
    tokens = LentTokens((Lent("a", NOW_S + 40, "x"), Lent("b", NOW_S + 20, "y")), now_s=lambda: NOW_S)
    assert tokens.get_token("a") == ("x", NOW_S + 40)
    with pytest.raises(ClientAuthenticationError, match=r"lent for b is over"):
        tokens.get_token("b")
    with pytest.raises(ClientAuthenticationError, match="no token for c"):
        tokens.get_token("c")


@pytest.mark.parametrize(
    ("argument", "environ", "wanted"),
    [
        ("a", {CONNECTION_VARIABLE: "b", HOST_VARIABLE: "c"}, "a"),
        ("", {CONNECTION_VARIABLE: "b", HOST_VARIABLE: "c"}, "b"),
        ("", {HOST_VARIABLE: "c"}, "c"),
    ],
)
def test_the_nearest_address_counts(argument: str, environ: Mapping[str, str], wanted: str) -> None:
    assert connection_of(argparse.Namespace(connection=argument), environ) == wanted


def test_without_an_address_the_text_names_the_variables() -> None:
    with pytest.raises(Refused, match=f"{HOST_VARIABLE}.*{CONNECTION_VARIABLE}"):
        connection_of(argparse.Namespace(connection=""), {})


def sweep_backend(monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str], directory: Directory) -> Any:
    """What a sweep's executors are sent to connect by, where the directory answers for the service principal."""
    monkeypatch.setattr(Principal, "get_token", lambda self, *scopes, **options: directory.get_token(*scopes))
    return backend_of(sweep_parser().parse_args(["--database", "bank"]), environ)


PLACES = {
    "OUTBOX_COSMOS__accountEndpoint": "https://bank.documents.azure.com:443/",
    HOST_VARIABLE: HOST,
    "OUTBOX_BLOBS__blobServiceUri": "https://bank.blob.core.windows.net/",
}


async def test_a_sweep_lends_a_token_for_each_service_by_the_scopes_that_the_sdks_ask_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = Directory()
    connecting = sweep_backend(monkeypatch, {**PLACES, **PRINCIPAL}, directory)
    cosmos = create_scope_from_url(PLACES["OUTBOX_COSMOS__accountEndpoint"])
    assert sorted(directory.asked) == sorted([cosmos, JWT_TOKEN_SCOPE, STORAGE_OAUTH_SCOPE])
    sent = pickle.dumps(connecting)
    assert b"s3cret" not in sent and b"t0ken" in sent and "t0ken" not in repr(connecting)
    async with connecting() as backend:
        assert "t0ken" not in repr(backend)


def test_a_sweep_without_a_service_principal_lends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory()
    assert b"t0ken" not in pickle.dumps(sweep_backend(monkeypatch, PLACES, directory))
    keyed = {"OUTBOX_COSMOS": "AccountEndpoint=https://b/;AccountKey=k", CONNECTION_VARIABLE: "Endpoint=sb://b/;X=k"}
    assert sweep_backend(monkeypatch, {**keyed, **PRINCIPAL}, directory) and directory.asked == []


def test_a_sweep_whose_principal_gets_no_token_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory(
        error=ClientAuthenticationError("AADSTS7000222: the secret has expired: client_secret=s3cret")
    )
    with pytest.raises(Refused, match=r"cannot sign in .*AADSTS7000222.*AZURE_CLIENT_SECRET on the driver") as told:
        sweep_backend(monkeypatch, {**PLACES, **PRINCIPAL}, directory)
    assert "s3cret" not in str(told.value) and told.value.__cause__ is None  # which would hold the request


def test_a_service_principal_asks_the_directory_anew_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client of the directory, over a transport that answers as the directory does."""
    posted: list[Any] = []

    def send(self: RequestsTransport, request: HttpRequest, **options: Any) -> Any:
        base = "https://login.microsoftonline.com/tenant"
        reported: dict[str, Any] = {
            "token_endpoint": f"{base}/token",
            "authorization_endpoint": f"{base}/authorize",
            "issuer": f"{base}/",
        }
        if request.method == "POST":
            posted.append(request.body)
            reported = {"access_token": f"t0ken{len(posted)}", "expires_in": 3_599, "token_type": "Bearer"}
        return answer(request, json.dumps(reported))

    monkeypatch.setattr(RequestsTransport, "send", send)
    source = CredentialSource.of(HOST, PRINCIPAL)
    lent = [source.access().lent for _ in range(2)]
    assert [one and one.get_token(SERVICEBUS_SCOPE).token for one in lent] == ["t0ken1", "t0ken2"]
    assert [(one["client_id"], one["scope"]) for one in posted] == [("client", SERVICEBUS_SCOPE)] * 2


def answer(request: HttpRequest, text: str) -> Any:
    """A response as the transport of the SDK gives it."""
    raw = requests.Response()
    raw.status_code, raw._content, raw.encoding = 200, text.encode(), "utf-8"
    raw.headers["Content-Type"] = "application/json"
    return RequestsTransportResponse(request, raw)
