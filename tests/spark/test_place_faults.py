"""A container that does not answer as it should: lost answers, throttling, missing rights; addresses that are none."""

from __future__ import annotations

import pickle
import random
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.storage.blob import BlobClient

from outbox.emulator.faults import FaultRule, drawn
from outbox.errors import OutcomeUnknown, Refused
from outbox.testing import VirtualClock
from spark_jobs.common import containers
from spark_jobs.common.container_errors import check_transient
from spark_jobs.common.containers import Container, container_place
from spark_jobs.common.folder import Folder
from spark_jobs.common.identity import STORAGE_SCOPE, LentTokens, Principal
from spark_jobs.common.places import joined, place_of
from tests.spark.lakes import BOX, Lake, emulated

KEY = containers.EMULATOR_KEY
BANK = f"DefaultEndpointsProtocol=https;AccountName=bank;AccountKey={KEY};EndpointSuffix=core.windows.net"


@pytest.fixture
def place(lake: Lake) -> Container:
    lake.plant()
    return container_place(f"az://{BOX}/{uuid4().hex}", lake.environ)


# Answers that are lost


@pytest.mark.parametrize(
    ("status", "code", "is_final"),
    [
        (None, "", False), (408, "", False), (429, "", False), (500, "", False), (503, "ServerBusy", False),
        (404, "BlobNotFound", False), (404, "ContainerNotFound", True), (404, "", True), (400, "InvalidInput", True),
        (401, "", True), (403, "AuthorizationFailure", True), (409, "LeaseIdMissing", True),
    ],
)  # fmt: skip
def test_an_answer_is_final_where_another_attempt_would_meet_the_same(
    status: int | None, code: str, is_final: bool
) -> None:
    error: Any = HttpResponseError("no")
    error.status_code, error.error_code = status, code
    with pytest.raises(Refused) if is_final else nullcontext():
        check_transient(error, "reading a", "https://bank.blob.core.windows.net", "data")


@pytest.mark.parametrize("large", [False, True])
def test_a_put_whose_answer_is_lost_has_won(
    lake: Lake, place: Container, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        monkeypatch.setattr(containers, "PUT_MAX_BYTES", 100)
        monkeypatch.setattr(containers, "BLOCK_BYTES", 100)
    lake.plant(*(FaultRule(kind="lost-reply", operation=name) for name in ("blob.put", "block.put", "block.commit")))
    assert place.create("a", b"x" * 250)
    assert place.read("a") == b"x" * 250 and not place.create("a", b"y")


def test_a_put_whose_answer_is_lost_may_still_have_been_second(lake: Lake, place: Container) -> None:
    assert place.create("a", b"first")
    lake.plant(FaultRule(kind="lost-reply", operation="blob.put"), FaultRule(kind="lost-reply", operation="blob.head"))
    assert not place.create("a", b"second") and place.read("a") == b"first"


def test_blocks_of_another_writer_are_not_committed(place: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "PUT_MAX_BYTES", 100)
    monkeypatch.setattr(containers, "BLOCK_BYTES", 100)
    commit, calls = BlobClient.commit_block_list, list[int]()

    def late(blob: BlobClient, *blocks: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise Refused("killed before its commit")
        with pytest.raises(Refused, match="killed"):
            place.create("a", b"B" * 250)  # staged meanwhile
        return commit(blob, *blocks, **options)

    monkeypatch.setattr(BlobClient, "commit_block_list", late)
    assert place.create("a", b"A" * 250) and place.read("a") == b"A" * 250 and len(calls) == 2


def test_a_writer_whose_blocks_another_put_has_dropped_was_second(
    place: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "PUT_MAX_BYTES", 100)
    commit = BlobClient.commit_block_list

    def late(blob: BlobClient, blocks: Any, **_: Any) -> Any:
        blob.upload_blob(b"B")
        return commit(blob, blocks)  # the list is looked at first, not the condition

    monkeypatch.setattr(BlobClient, "commit_block_list", late)
    assert not place.create("a", b"A" * 250) and place.read("a") == b"B"


@pytest.mark.parametrize("seed", range(12))
def test_drawn_faults_change_no_answer(
    lake: Lake, place: Container, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(containers, "PUT_MAX_BYTES", 100)
    monkeypatch.setattr(containers, "BLOCK_BYTES", 100)
    chance, held = random.Random(seed), dict[str, bytes]()
    kinds: tuple[Any, ...] = ("lost-reply", "throttled", "reset", "status", "lost-reply", "throttled")
    lake.plant(*drawn(seed, kinds, within=20, status=500))
    for number in range(25):
        name, data = f"n{chance.randrange(8)}", b"%d" % number * chance.choice((1, 150))
        verb = chance.choice(("create", "create", "read", "list", "delete"))
        if verb == "create":
            assert place.create(name, data) is (name not in held)
            held.setdefault(name, data)
        elif verb == "read":
            assert place.read(name) == held.get(name)
        elif verb == "delete":
            place.delete(name)
            held.pop(name, None)
        else:
            assert [item.name for item in place.list()] == sorted(held)
    assert lake.emulator is not None and any(lake.emulator.faults.fired.values())
    lake.plant()
    for name in list(held):
        place.delete(name)


def test_throttling_is_waited_out_within_a_limit(lake: Lake, place: Container) -> None:
    lake.plant(FaultRule(kind="throttled", count=3))
    assert place.create("a", b"1")
    lake.plant(FaultRule(kind="throttled", count=None))
    hasty = replace(place, limit_s=0.5)
    started_s = time.monotonic()
    with pytest.raises(OutcomeUnknown, match=r"writing b in az://lake/.*no success for .*run the same again"):
        hasty.create("b", b"1")
    with pytest.raises(Refused, match="reading a"):
        hasty.read("a")
    assert time.monotonic() - started_s < 5


def test_a_request_without_an_answer_ends(lake: Lake, place: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "READ_S", 0.3)
    containers.client_of.cache_clear()
    lake.plant(FaultRule(kind="pause", operation="blob.put", delay_s=3.0))
    assert place.create("a", b"1")  # the second put is told that there is one, and finds that it is its own
    containers.client_of.cache_clear()


# Refusals


def test_a_container_that_is_not_there_is_named(lake: Lake) -> None:
    place = container_place("az://nowhere/a", lake.environ)
    asked: list[Any] = [
        lambda: place.create("a", b"1"), lambda: place.create("a", b"1" * 50), lambda: place.read("a"),
        lambda: list(place.list()), lambda: place.delete("a"), place.now_s,
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(Refused, match=r"there is no container 'nowhere' in http:.*az storage container create"):
            ask()


def test_an_identity_without_rights_is_told_its_role(lake: Lake, place: Container) -> None:
    lake.plant(FaultRule(kind="status", status=403, code="AuthorizationPermissionMismatch", operation="blob.put"))
    with pytest.raises(Refused, match=r"403 AuthorizationPermissionMismatch: .*role Storage Blob Data Contributor"):
        place.create("a", b"1")


def test_a_wrong_key_is_told_and_not_shown(lake: Lake) -> None:
    wrong = "d3Jvbmc="
    place = container_place(f"az://{BOX}/a", {"OUTBOX_LAKE": lake.environ["OUTBOX_LAKE"].replace(KEY, wrong)})
    with pytest.raises(Refused, match="403 AuthenticationFailed: the key does not fit") as caught:
        place.create("a", b"1")
    assert wrong not in str(caught.value) and wrong not in repr(place)


@pytest.mark.parametrize(("off_s", "how"), [(-3_600, "behind"), (3_600, "ahead of")])
def test_a_clock_that_is_off_is_told(off_s: float, how: str) -> None:
    with emulated(clock=VirtualClock(time.time() + off_s)) as late:
        place = container_place(f"az://{BOX}/a", late.environ)
        assert place.create("a", b"1") and abs(time.time() - place.now_s()) > 3_500
        late.plant(FaultRule(kind="refused"))
        with pytest.raises(Refused, match=rf"the account's clock is 3,\d\d\d s {how} this machine's, set"):
            place.create("b", b"1")


def test_another_refusal_is_given_as_it_is(lake: Lake, place: Container) -> None:
    lake.plant(FaultRule(kind="status", status=409, code="LeaseAlreadyPresent", operation="blob.delete"))
    with pytest.raises(Refused, match=r"409 LeaseAlreadyPresent: .*another attempt would meet the same"):
        place.delete("a")


# Who asks


class Tokens:
    """A credential that counts, and may be refused."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[str] = []
        self._error = error

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        if self._error is not None:
            raise self._error
        self.asked += scopes
        return AccessToken(f"token-{len(self.asked)}", int(time.time()) + 3_600)


def test_executors_are_lent_a_token_and_nothing_more() -> None:
    principal = Principal("t", "c", "s3cret")
    place = place_of("abfss://box@bank.dfs.core.windows.net/a", {}, principal)
    with pytest.raises(TypeError, match="stays on the driver"):
        pickle.dumps(place)
    tokens = Tokens()
    lent = cast(Container, place_of("abfss://box@bank.dfs.core.windows.net/a", {}, cast(Any, tokens)).lend())
    sent = pickle.loads(pickle.dumps(lent))  # noqa: S301  pickled by this test
    assert sent.account.credential.get_token(STORAGE_SCOPE).token == "token-1" and tokens.asked == [STORAGE_SCOPE]
    assert isinstance(sent.account.credential, LentTokens) and "token-1" not in repr(sent)
    assert sent.lend() == sent


def test_delta_rs_is_given_the_same_identity() -> None:
    environ = {"OUTBOX_LAKE": BANK}
    options = place_of("abfss://box@bank.dfs.core.windows.net/a/b", environ).storage_options()
    assert options["account_name"] == "bank" and options["account_key"] == KEY and "allow_http" not in options
    other = place_of("abfss://box@other.dfs.core.windows.net/a/b/", environ, cast(Any, Tokens()))
    options = other.storage_options()
    assert (options["bearer_token"], other.uri) == ("token-1", "az://box/a/b") and "account_key" not in options
    assert other.storage_options()["bearer_token"] == "token-2"


def test_nobody_who_could_sign_in_is_told_at_once() -> None:
    refused = Tokens(ClientAuthenticationError("no such principal"))
    place = place_of("abfss://box@bank.dfs.core.windows.net/a", {}, cast(Any, refused))
    with pytest.raises(Refused, match=r"cannot sign in at https://bank\.blob\.core\.windows\.net: .*AZURE_TENANT_ID"):
        place.read("a")


# Addresses


@pytest.mark.parametrize(
    ("text", "environ", "url", "container", "prefix"),
    [
        ("abfss://box@bank.dfs.core.windows.net/a/b", {}, "https://bank.blob.core.windows.net", "box", "a/b/"),
        ("abfss://box@bank.dfs.core.windows.net", {}, "https://bank.blob.core.windows.net", "box", ""),
        ("https://bank.blob.core.windows.net/box/a%20b/", {}, "https://bank.blob.core.windows.net", "box", "a b/"),
        ("https://bank.dfs.core.windows.net/box", {}, "https://bank.blob.core.windows.net", "box", ""),
        ("az://box/a", {"OUTBOX_LAKE": BANK}, "https://bank.blob.core.windows.net", "box", "a/"),
        ("az://box/a", {"OUTBOX_LAKE__blobServiceUri": "https://bank.blob.core.windows.net/"},
         "https://bank.blob.core.windows.net", "box", "a/"),
        ("az://box", {"OUTBOX_LAKE": "UseDevelopmentStorage=true"}, "http://127.0.0.1:10000/devstoreaccount1", "box",
         ""),
        ("http://127.0.0.1:9/devstoreaccount1/box/a", {}, "http://127.0.0.1:9/devstoreaccount1", "box", "a/"),
        ("abfss://box@devstoreaccount1.dfs.core.windows.net/a", {"OUTBOX_LAKE": "UseDevelopmentStorage=true"},
         "http://127.0.0.1:10000/devstoreaccount1", "box", "a/"),
    ],
)  # fmt: skip
def test_an_address_names_an_account_and_a_prefix(
    text: str, environ: dict[str, str], url: str, container: str, prefix: str
) -> None:
    place = container_place(text, environ)
    assert (place.account.url, place.container, place.prefix, str(place)) == (url, container, prefix, text)
    assert bool(place.account.key) is ("AccountKey" in str(environ) or url.startswith("http:"))
    assert str(place / "c") == f"{text.rstrip('/')}/c" and (place / "c").prefix == f"{prefix}c/"


@pytest.mark.parametrize(
    ("text", "environ", "told"),
    [
        ("s3://box/a", {}, "s3://... is not known here; say abfss://"),
        ("az://box/a", {}, "az:// names no account: set OUTBOX_LAKE"),
        ("az://b/a", {"OUTBOX_LAKE": BANK}, "names no container: 'b'"),
        ("az://box/../a", {"OUTBOX_LAKE": BANK}, "no name of a file"),
        ("abfss://bank.dfs.core.windows.net/a", {}, "no host of a storage account"),
        ("abfss://box@evil.example.com/a", {}, "no host of a storage account"),
        ("https://bank.blob.core.windows.net/box?sig=s3cret", {}, "shared access signature is not taken"),
        ("https://user:s3cret@bank.blob.core.windows.net/box", {}, "holds no user"),
        ("http://bank.blob.core.windows.net/box", {}, "asked by https"),
        ("http://127.0.0.1/devstoreaccount1/box", {}, "with its port"),
        ("http://127.0.0.1:9/other/box", {}, "no key for the account 'other'"),
        ("az://box", {"OUTBOX_LAKE": "AccountName=bank;SharedAccessSignature=s3cret"}, "no connection string with"),
        ("az://box", {"OUTBOX_LAKE": f"AccountName=b;AccountKey={KEY};BlobEndpoint=http://b.example.com"}, "by https"),
        ("az://box", {"OUTBOX_LAKE__blobServiceUri": "http://bank.blob.core.windows.net"}, "by https"),
        ("az://box", {"OUTBOX_LAKE__blobServiceUri": "https://example.com"}, "no host of a storage account"),
    ],
)
def test_an_address_that_tells_too_little_is_refused(text: str, environ: dict[str, str], told: str) -> None:
    with pytest.raises(Refused) as caught:
        place_of(text, environ)
    assert told in str(caught.value) and "s3cret" not in str(caught.value) and KEY not in str(caught.value)


def test_a_path_is_a_folder() -> None:
    for text in ("a/b", "/a/b/", "file:///a/b"):
        assert isinstance(place_of(text, {}), Folder)
    assert joined("in/a.csv/", ".feed/q") == "in/a.csv.feed/q"
