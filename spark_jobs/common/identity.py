"""The identity of a job without a key: the credential of its driver, and of its executors.

An address of a Service Bus is a connection string, which brings its key along, or a host name.  For a host name:

1. The driver has a credential: a service principal of its environment (where `spark_jobs.submitted` puts what Key Vault
   holds, and where no executor sees it), or one that a notebook gave.  It asks for a token before each Spark job and
   lends that to the executors.  A token lives about an hour and is good for one service; secret and credential stay.
2. Else each executor signs in itself, by DefaultAzureCredential, when it first connects.

A host name of this machine with a port is an emulator's: it speaks no TLS and looks at no token.  To any other the SDK
speaks TLS, so that no token leaves a machine in the clear.  Tokens and secrets are part of no `repr`.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from outbox.errors import Refused
from outbox.runtime.failures.redacting import redacted
from spark_jobs.common.patience import GaveUpError

if TYPE_CHECKING:  # the SDKs take half a second to import, and a driver with a connection string needs none of them
    from azure.core.credentials import AccessToken, TokenCredential
    from azure.servicebus import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

    from outbox.azure.connecting import AzureBackend

SERVICEBUS_SCOPE = "https://servicebus.azure.net//.default"  # as the SDK spells it
STORAGE_SCOPE = "https://storage.azure.com/.default"
PRINCIPAL = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")
SPARE_S = 30
"""A token that ends sooner is over: what begins with it would not end with it."""
ERROR_CHARACTERS = 300
CURE = (
    f"set {', '.join(PRINCIPAL)} on the driver (submitted.py: --setting, and --secret from Key Vault), or run where a "
    "managed identity or `az login` answers"
)

_HOST = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9.-]*|\[::1\])(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Lent:
    """A token for one service, and when it ends, in seconds since 1970."""

    scope: str
    expires_s: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class LentTokens:
    """A credential that an executor can be sent: tokens and nothing to get others with."""

    tokens: tuple[Lent, ...]
    now_s: Callable[[], float] = time.time

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """The token of a service.

        Raises:
            ClientAuthenticationError: none was lent for it, or it is over.
        """
        from azure.core.credentials import AccessToken
        from azure.core.exceptions import ClientAuthenticationError

        for lent in self.tokens:
            if lent.scope in scopes:
                if lent.expires_s - self.now_s() < SPARE_S:
                    break
                return AccessToken(lent.token, lent.expires_s)
        else:
            raise ClientAuthenticationError(f"the driver has lent no token for {' '.join(scopes)}")
        raise ClientAuthenticationError(
            f"the token that the driver lent for {lent.scope} is over; the same command run again goes on with a new "
            "one, and smaller parts need theirs for a shorter time (feed: --chunks)"
        )


class LentTokensAsync:
    """The same for the asynchronous clients."""

    def __init__(self, lent: LentTokens) -> None:
        self._lent = lent

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """The token of a service."""
        return self._lent.get_token(*scopes)

    async def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A service principal; each token is a new one, because one out of a cache may be about to end."""

    tenant: str
    client: str
    secret: str = field(repr=False)

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Ask the directory for a token."""
        from azure.identity import ClientSecretCredential

        with ClientSecretCredential(self.tenant, self.client, self.secret) as credential:
            return credential.get_token(*scopes)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a service principal's secret stays on the driver; lend() makes what executors are sent")


def principal_of(environ: Mapping[str, str]) -> Principal | None:
    """The service principal of an environment; None where it has no secret of one.

    Raises:
        Refused: a part of it is missing.
    """
    tenant, client, secret = (environ.get(name, "") for name in PRINCIPAL)
    if not secret:
        return None
    missing = [name for name in PRINCIPAL if not environ.get(name)]
    if missing:
        raise Refused(f"{PRINCIPAL[2]} is set and {' and '.join(missing)} not; set all three, or none")
    return Principal(tenant, client, secret)


def lend(credential: TokenCredential, scopes: Iterable[str]) -> LentTokens:
    """Ask for a token of each service.

    Raises:
        GaveUpError: it cannot be had; the text names the cure.
    """
    from azure.core.exceptions import AzureError

    lent = []
    for scope in scopes:
        try:
            given = credential.get_token(scope)
        except AzureError as error:
            raise GaveUpError(refusal(scope, error)) from None  # the cause holds the request
        lent.append(Lent(scope, given.expires_on, given.token))
    return LentTokens(tuple(lent))


def lent_for(addresses: Sequence[str], environ: Mapping[str, str]) -> LentTokens | None:
    """Tokens for those of some addresses (host of a Service Bus, URLs) that bring no key along, all at once.

    None where executors sign in themselves.

    Raises:
        Refused: the service principal lacks a part, or gets no token.
    """
    principal = principal_of(environ)
    scopes = [scope_of(address) for address in addresses if "=" not in address]
    if principal is None or not scopes:
        return None
    try:
        return lend(principal, scopes)
    except GaveUpError as error:
        raise Refused(str(error)) from None


def scope_of(address: str) -> str:
    """The scope of a token for an address: each Cosmos DB account has its own, other services have one."""
    url = urlsplit(address)
    if not url.hostname:
        return SERVICEBUS_SCOPE
    return STORAGE_SCOPE if ".blob." in url.hostname else f"{url.scheme}://{url.hostname}/.default"


def connect_lent(lent: LentTokens, **given: Any) -> AzureBackend:
    """Run `azure.connect` on an executor, signed in with the lent tokens."""
    from outbox.azure.connecting import connect  # the SDK of Cosmos DB, which only a sweep needs

    return connect(**given, credential=LentTokensAsync(lent))


def refusal(target: str, error: Exception) -> str:
    """Why nobody could sign in, and what to do."""
    told = " ".join(redacted(str(error)).split())[:ERROR_CHARACTERS]
    return f"cannot sign in at {target}: {type(error).__name__}: {told}; {CURE}"


@cache
def own_credential() -> TokenCredential:
    """The credential of this process itself; one for all connections, because it keeps its tokens."""
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


@dataclass(frozen=True, slots=True)
class Access:
    """An executor's access to a Service Bus: by a connection string's key, by lent tokens, or as itself."""

    address: str = field(repr=False)
    lent: LentTokens | None = None

    def client(self) -> ServiceBusClient:
        """A client; it connects with its first link.

        Raises:
            GaveUpError: nobody could sign in; another attempt is of no use.
            ConnectionError: whoever gives tokens does not answer now.
        """
        from azure.core.exceptions import AzureError, ClientAuthenticationError
        from azure.servicebus import ServiceBusClient

        if is_connection_string(self.address):
            return ServiceBusClient.from_connection_string(self.address, retry_total=0)
        credential = self.lent or own_credential()
        try:
            credential.get_token(SERVICEBUS_SCOPE)  # the SDK would tell a refusal like an outage, which is sat out
        except ClientAuthenticationError as error:
            raise GaveUpError(refusal(self.address, error)) from None
        except AzureError as error:
            raise ConnectionError(refusal(self.address, error)) from None
        return ServiceBusClient(self.address, credential, retry_total=0, use_tls=not is_emulator(self.address))


def let_go(*parts: ServiceBusSender | ServiceBusReceiver | ServiceBusClient | None) -> None:
    """Close a link and its client; of one whose connection broke nothing is left to close."""
    from azure.servicebus.exceptions import ServiceBusError

    for part in parts:
        if part is not None:
            with suppress(ServiceBusError, OSError):
                part.close()


@dataclass(frozen=True, slots=True)
class CredentialSource:
    """The identity of a job on its driver; `credential` is None where executors sign in themselves."""

    address: str = field(repr=False)
    credential: TokenCredential | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, address: str, environ: Mapping[str, str], credential: TokenCredential | None = None
    ) -> CredentialSource:
        """By what a job was given, and else by its environment.

        Raises:
            Refused: the address or the service principal cannot be meant.
        """
        if is_connection_string(address):
            return cls(address)
        check_host(address)
        return cls(address, credential or principal_of(environ))

    def access(self) -> Access:
        """The access by which the executors of the next Spark job connect.

        Raises:
            GaveUpError: no token can be had.
        """
        lent = lend(self.credential, [SERVICEBUS_SCOPE]) if self.credential is not None else None
        return Access(self.address, lent)


def is_connection_string(address: str) -> bool:
    """Whether an address brings a key along."""
    return address.startswith("Endpoint=")


def is_emulator(host: str) -> bool:
    """Whether a host name is of this machine and has a port."""
    found = _HOST.fullmatch(host)
    if not found or not found["port"]:
        return False
    try:
        return ipaddress.ip_address(found["name"].strip("[]")).is_loopback
    except ValueError:
        return found["name"] == "localhost"


def check_host(address: str) -> None:
    """Refuse all but connection strings and host names, without showing the address, which may hold a key."""
    found = _HOST.fullmatch(address)
    if not is_emulator(address) and (not found or found["port"] or "." not in found["name"]):
        raise Refused(
            "the connection is neither a host name (bank.servicebus.windows.net, without sb:// and port) nor a "
            "connection string (Endpoint=sb://...)"
        )
