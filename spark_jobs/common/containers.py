"""A prefix of a container in a storage account as a place, over azure-storage-blob.

*Who asks.*  `OUTBOX_LAKE` may hold a connection string: its key is for addresses of that account, which `az://` means
too.  Any other address is asked for with an identity, as `common.identity` has it: the driver's service principal,
which lends executors tokens, else each process signs in itself.  `OUTBOX_LAKE__blobServiceUri` names the account of
`az://` where there is no key.  An account of this machine is an emulator's; to any other the SDK speaks TLS.

*Theory of operation.*  `create` is a put under `If-None-Match: *`.  A put whose answer is lost is sent again, and meets
itself: so each carries a token of its own in the blob's metadata, and who is told that the blob exists reads the token
before believing to be second.  What is larger than one put is staged in blocks whose ids are random, because those that
the SDK makes are the same for every writer of a name, and one writer's list would commit another's bytes.  Outages and
throttling are waited out within `limit_s`; every request has a timeout.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from azure.core import MatchConditions
from azure.core.credentials import AzureNamedKeyCredential, TokenCredential
from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import BlobBlock, BlobClient, BlobProperties, ContainerClient

from outbox.errors import OutcomeUnknown, Refused
from spark_jobs.common.container_errors import check_transient, code_of, server_time_s
from spark_jobs.common.identity import STORAGE_SCOPE, LentTokens, is_emulator, lend, own_credential, principal_of
from spark_jobs.common.items import Item, changed, checked
from spark_jobs.common.patience import GaveUpError, Patience
from spark_jobs.common.places import Place

VARIABLE = "OUTBOX_LAKE"
URI_VARIABLE = f"{VARIABLE}__blobServiceUri"
EMULATOR = "devstoreaccount1"
EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Microsoft's public account and key for emulators: they protect nothing."""
LIMIT_S = 120.0
CONNECT_S, READ_S = 10, 60
PUT_MAX_BYTES = 32 << 20
BLOCK_BYTES = 8 << 20
PAGE_COUNT = 5_000
CLIENT_COUNT_MAX = 16
TOKEN = "outbox_token"
"""The metadata by which a writer knows its own blob."""
_TAKEN = ("BlobAlreadyExists", "ConditionNotMet", "InvalidBlockList")
"""Codes of a put over a blob that may exist; under the last, another put has dropped the staged blocks."""
_CONTAINER = re.compile(r"[A-Za-z0-9$][A-Za-z0-9$-]{2,62}")
_HOST = re.compile(r"(?P<account>[a-z0-9][a-z0-9-]{0,62})\.(?:dfs|blob)\.(?P<suffix>[a-z0-9][a-z0-9.-]+)")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Account:
    """A storage account and who asks it: its key, else a credential, else this process by itself."""

    name: str
    url: str
    key: str = field(default="", repr=False)
    credential: TokenCredential | None = field(default=None, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is an emulator's."""
        return self.url.startswith("http:")

    def lend(self) -> Account:
        """The same with tokens in place of what gets them."""
        if self.key or self.credential is None or isinstance(self.credential, LentTokens):
            return self
        return replace(self, credential=lend(self.credential, [STORAGE_SCOPE]))


@dataclass(frozen=True, slots=True)
class Container:
    """Write-once blobs below a prefix, which is empty or ends with a slash."""

    given: str
    account: Account
    container: str
    prefix: str = ""
    limit_s: float = LIMIT_S

    def __str__(self) -> str:
        return self.given

    def __truediv__(self, name: str) -> Container:
        given, prefix = f"{self.given.rstrip('/')}/{checked(name)}", f"{self.prefix}{name}/"
        return replace(self, given=given, prefix=prefix)

    def parted(self) -> tuple[Container, str]:
        """The place that holds this one, and its name there; no name where it is the whole container."""
        above, _, name = self.prefix.rstrip("/").rpartition("/")
        given = self.given.rstrip("/").rpartition("/")[0] if name else self.given
        return replace(self, given=given, prefix=f"{above}/" if above else ""), name

    @property
    def uri(self) -> str:
        """The address that delta-rs opens."""
        return f"az://{self.container}/{self.prefix}".rstrip("/")

    def storage_options(self) -> dict[str, str]:
        """The options of delta-rs besides the address.

        Raises:
            GaveUpError: no token can be had.
        """
        account = self.account
        options = {"account_name": account.name, "endpoint": account.url, "timeout": f"{READ_S}s"}
        if account.is_local:
            options["allow_http"] = "true"
        if account.key:
            return options | {"account_key": account.key}
        lent = lend(account.credential or own_credential(), [STORAGE_SCOPE])
        return options | {"bearer_token": lent.tokens[0].token}

    def lend(self) -> Container:
        """The same place for executors."""
        return replace(self, account=self.account.lend())

    def now_s(self) -> float:
        """Seconds since 1970 by the clock of the account."""
        seen: list[float | None] = []
        self._asked("the clock", lambda at: at.get_container_properties(
            raw_response_hook=lambda answer: seen.append(server_time_s(answer.http_response.headers))
        ))  # fmt: skip
        found = seen[-1] if seen else None
        if found is None:
            raise Refused(f"{self} answers without a time; is there something else than Blob Storage at its address?")
        return found

    def create(self, name: str, data: bytes) -> bool:
        """Put a blob that must not exist yet; False where somebody else put it first."""
        token, ids = uuid4().hex, [uuid4().hex for _ in range(0, len(data), BLOCK_BYTES)]

        def put(container: ContainerClient) -> bool:
            blob = container.get_blob_client(self.prefix + checked(name))
            try:
                _put(blob, data, token, ids)
            except HttpResponseError as error:
                if code_of(error) not in _TAKEN:
                    raise
                metadata = blob.get_blob_properties().metadata or {}
                return metadata.get(TOKEN) == token  # an earlier put of ours whose answer was lost
            return True

        return self._asked(f"writing {name}", put, writes=True)

    def read(self, name: str, start: int = 0, size: int | None = None, version: str = "") -> bytes | None:
        """A blob's bytes from a place on, None where there is no blob."""
        options: dict[str, Any] = {}
        if start or size is not None:
            options |= {"offset": start, "length": None if size is None else max(1, size)}
        if version:
            options |= {"etag": f'"{version}"', "match_condition": MatchConditions.IfNotModified}

        def got(container: ContainerClient) -> bytes | None:
            try:
                data: bytes = container.download_blob(self.prefix + checked(name), **options).readall()
            except ResourceNotFoundError as error:
                if code_of(error) == "BlobNotFound":
                    return None
                raise
            except HttpResponseError as error:
                if error.status_code == 416:
                    return b""
                if error.status_code == 412 and version:
                    raise changed(self, name) from None
                raise
            return data[:size] if size is not None else data

        return self._asked(f"reading {name}", got)

    def list(self, prefix: str = "", suffix: str = "") -> Iterator[Item]:
        """The blobs below whose names begin and end so, in the order of the service."""
        marker: str | None = None
        while True:
            items, marker = self._asked("listing", partial(self._page, f"{self.prefix}{prefix}", marker))
            yield from (item for item in items if item.name.endswith(suffix))
            if not marker:
                return

    def _page(self, prefix: str, marker: str | None, container: ContainerClient) -> tuple[tuple[Item, ...], str | None]:
        listed: Any = container.list_blobs(
            name_starts_with=prefix or None, include=["metadata"], results_per_page=PAGE_COUNT
        ).by_page(marker)
        items = tuple(self._item(blob) for blob in next(listed, ()) if not _is_folder(blob))
        return items, listed.continuation_token

    def _item(self, blob: BlobProperties) -> Item:
        modified_s = blob.last_modified.timestamp()
        return Item(blob.name[len(self.prefix) :], blob.size, modified_s, (blob.etag or "").strip('"'))

    def delete(self, name: str) -> None:
        """Remove a blob; one that is not there is fine."""

        def gone(container: ContainerClient) -> None:
            try:
                container.delete_blob(self.prefix + checked(name))
            except ResourceNotFoundError as error:
                if code_of(error) != "BlobNotFound":
                    raise

        self._asked(f"removing {name}", gone, writes=True)

    def sweep_parts(self, age_s: float) -> int:
        """Blocks without a list are no blob, and the service forgets them after a week."""
        return 0

    def _asked(self, what: str, ask: Callable[[ContainerClient], T], *, writes: bool = False) -> T:
        """Ask until there is an answer, or for so long.

        Raises:
            Refused: the answer is no, or none came to a question that changes nothing.
            OutcomeUnknown: none came to a write.
        """
        what = f"{what} in {self}"
        patience = Patience(self.limit_s, time.monotonic, time.sleep, random.random)
        while True:
            try:
                return ask(client_of(self.account, self.container))
            except (AzureError, OSError) as error:
                check_transient(error, what, self.account.url, self.container)
                try:
                    patience.failed(error)
                except GaveUpError as over:
                    text = f"{what}: {over}; is the account's name right, and does it answer? Then run the same again"
                    raise (OutcomeUnknown if writes else Refused)(text) from None


def _put(blob: BlobClient, data: bytes, token: str, ids: list[str]) -> None:
    """Put all of a blob where there is none."""
    if len(data) <= PUT_MAX_BYTES:
        blob.upload_blob(data, length=len(data), metadata={TOKEN: token}, overwrite=False)
        return
    for number, id in enumerate(ids):
        blob.stage_block(id, data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES])
    blocks = [BlobBlock(id) for id in ids]
    blob.commit_block_list(blocks, metadata={TOKEN: token}, match_condition=MatchConditions.IfMissing)


def _is_folder(blob: BlobProperties) -> bool:
    """Whether it stands for a folder of an account with a hierarchical namespace."""
    return (blob.metadata or {}).get("hdi_isfolder", "").lower() == "true"


@lru_cache(maxsize=CLIENT_COUNT_MAX)
def client_of(account: Account, container: str) -> ContainerClient:
    """One client for all requests of a process to a container; it sends each once, `_asked` sends again."""
    if account.key:
        credential: Any = AzureNamedKeyCredential(account.name, account.key)
    else:
        credential = account.credential or own_credential()
    return ContainerClient(
        account.url,
        container,
        credential,
        retry_total=0,
        transport=RequestsTransport(use_env_settings=not account.is_local),
        connection_timeout=CONNECT_S,
        read_timeout=READ_S,
        max_single_put_size=PUT_MAX_BYTES,
        max_chunk_get_size=BLOCK_BYTES,
    )


def container_place(text: str, environ: Mapping[str, str], credential: TokenCredential | None = None) -> Container:
    """The place of an address.

    Raises:
        Refused: the address or the environment does not tell enough.
    """
    scheme, _, rest = text.partition("://")
    if "?" in text or "#" in text:
        raise Refused(
            f"a {scheme}:// address with a query or a shared access signature is not taken; sign in with an identity, "
            f"or put the account's connection string into {VARIABLE}"
        )
    given = given_account(environ)
    if scheme in ("abfss", "abfs"):
        at, _, path = rest.partition("/")
        container, _, host = at.partition("@")
        account = account_at(host.lower(), given)
    elif scheme == "az":
        container, _, path = rest.partition("/")
        account = given or account_of_uri(environ)
    elif scheme in ("https", "http"):
        account, container, path = of_url(text, given)
    else:
        raise Refused(
            f"{scheme}://... is not known here; say abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX, "
            "az://CONTAINER/PREFIX, https://ACCOUNT.blob.core.windows.net/CONTAINER/PREFIX, or a path"
        )
    prefix = path.strip("/")
    if not _CONTAINER.fullmatch(container):
        raise Refused(f"{text} names no container: {container[:80]!r}; {scheme} addresses are in the docs of places")
    if not account.key:
        account = replace(account, credential=credential or principal_of(environ))
    return Container(text, account, container, f"{checked(prefix)}/" if prefix else "")


def given_account(environ: Mapping[str, str]) -> Account | None:
    """The account of the connection string in the environment, if there is one.

    Raises:
        Refused: it is no connection string with a key.
    """
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return None
    parts = dict(part.partition("=")[::2] for part in text.split(";") if part)
    if parts.get("UseDevelopmentStorage", "").lower() == "true":
        return Account(EMULATOR, f"http://127.0.0.1:10000/{EMULATOR}", EMULATOR_KEY)
    name, key = parts.get("AccountName", ""), parts.get("AccountKey", "")
    if not name or not key:
        raise Refused(
            f"{VARIABLE} is no connection string with AccountName and AccountKey; without a key leave it out, and sign "
            "in with an identity"
        )
    suffix = parts.get("EndpointSuffix") or "core.windows.net"
    url = (parts.get("BlobEndpoint") or f"https://{name}.blob.{suffix}").rstrip("/")
    check_private(url)
    return Account(name, url, key)


def account_of_uri(environ: Mapping[str, str]) -> Account:
    """The account that `az://` means where there is no connection string.

    Raises:
        Refused: none is named.
    """
    url = environ.get(URI_VARIABLE, "").strip().rstrip("/")
    if not url:
        raise Refused(
            f"az:// names no account: set {VARIABLE} to its connection string, or {URI_VARIABLE} to its address "
            "(https://ACCOUNT.blob.core.windows.net); or give abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"
        )
    check_private(url)
    parts = urlsplit(url)
    return account_at((parts.hostname or "").lower(), None)


def account_at(host: str, given: Account | None) -> Account:
    """The account that a host name is of; a Data Lake's is asked at its blob endpoint.

    Raises:
        Refused: it is none.
    """
    found = _HOST.fullmatch(host)
    if not found:
        raise Refused(f"{host[:80]!r} is no host of a storage account, as bank.dfs.core.windows.net is")
    if given is not None and given.name == found["account"]:
        return given
    return Account(found["account"], f"https://{found['account']}.blob.{found['suffix']}")


def of_url(text: str, given: Account | None) -> tuple[Account, str, str]:
    """Account, container and path of an address by HTTP; an emulator's path begins with the account.

    Raises:
        Refused: another scheme than https for another machine.
    """
    check_private(text)
    parts = urlsplit(text)
    names = unquote(parts.path).strip("/")
    if not text.startswith("http:"):
        container, _, path = names.partition("/")
        return account_at((parts.hostname or "").lower(), given), container, path
    name, _, rest = names.partition("/")
    container, _, path = rest.partition("/")
    url = f"http://{parts.netloc}/{name}"
    if given is not None and given.name == name:
        return replace(given, url=url), container, path
    if name != EMULATOR:
        raise Refused(f"there is no key for the account {name[:80]!r} at {parts.netloc}; put it into {VARIABLE}")
    return Account(name, url, EMULATOR_KEY), container, path


def check_private(url: str) -> None:
    """Refuse an address by which keys and bytes would leave this machine in the clear."""
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise Refused("an address of a storage account holds no user and no password")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_emulator(parts.netloc)):
        raise Refused(
            f"{parts.scheme}://{parts.netloc[:80]}: a storage account is asked by https; http is for an emulator on "
            "this machine, with its port"
        )


_conforms: type[Place] = Container
