"""Batches of a Synapse Spark pool over its Livy-style REST interface.

A small client of our own: azure-synapse-spark is of 2021, knows no asyncio and does not import without `six`, which it
does not declare.  It does what it is told once and says what came of it: `create` is sent again only after an answer
that says nothing was done (429, or no connection at all).  What can be asked twice is asked again.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from azure.core.credentials import AccessToken
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, stop_before_delay

from outbox.errors import OutcomeUnknown, Refused, Throttled
from outbox.runtime.failures.redacting import redacted
from outbox.spark import NotRunnable, Phase, RunId, RunRequest
from spark_jobs.submitting.once import Batch, Batches

T = TypeVar("T")

SCOPE = "https://dev.azuresynapse.net/.default"
API = "2019-11-01-preview"
TAG = "outbox-run"
PAYLOAD_BYTES_MAX = 100_000
"""The largest request that Synapse takes; a larger one is refused here with a text that helps."""
CREATES_A_SECOND = 2
PAGE_COUNT = 20
"""How many batches a page holds at most; the service gives no more."""
OVERLAP_COUNT = 5
"""How many of a page are asked for again with the next: a list that shrinks meanwhile moves up."""
PAGES_MAX = 1_000
LISTINGS_MAX = 3
ANSWER_BYTES_MAX = 8 << 20
READ_COUNT_MAX = 4
PAUSE_S_MAX = 30.0
TOKEN_S = 30.0
TOKEN_SPARE_S = 300.0

PHASES: Mapping[str, Phase] = {
    **dict.fromkeys(("not_started", "starting", "recovering"), "submitted"),
    **dict.fromkeys(("idle", "busy", "running", "shutting_down"), "running"),
    **dict.fromkeys(("error", "dead"), "failed"),
    "success": "succeeded",
    "killed": "cancelled",
}

Token = Callable[[], Awaitable[AccessToken]]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The pool, and the code that it runs: `file` is the main definition, `python_files` the zip."""

    workspace: str
    pool: str
    file: str
    python_files: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    """The arguments before the job's name: the place of the run's document, and the secrets to fetch."""
    configuration: Mapping[str, str] = field(default_factory=dict)
    cores: int = 4
    memory: str = "28g"
    executors: int = 2

    @property
    def url(self) -> str:
        """The address of the pool's batches.

        Raises:
            Refused: the workspace is neither a name nor an address that a token may be sent to.
        """
        if re.fullmatch(r"[a-z0-9][a-z0-9-]{0,48}[a-z0-9]", self.workspace):
            base = f"https://{self.workspace}.dev.azuresynapse.net"
        else:
            base, parts = self.workspace.rstrip("/"), urlsplit(self.workspace)
            is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
            if not parts.hostname or (parts.scheme != "https" and not is_local):
                raise Refused(f"workspace {self.workspace[:80]!r}: give its name, or its address with https://")
        return f"{base}/livyApi/versions/{API}/sparkPools/{quote(self.pool, safe='')}/batches"


class LivyBatch(msgspec.Struct, rename="camel"):
    """A batch as the service describes it, as far as it matters here."""

    id: int
    name: str | None = None
    state: str | None = None
    result: str | None = None
    tags: dict[str, str | None] | None = None
    app_id: str | None = None
    error_info: list[dict[str, Any]] | None = None

    @property
    def batch(self) -> Batch:
        """The same in our words."""
        phase: Phase = PHASES.get(self.state or "", "unknown")
        if self.result == "Cancelled":
            phase = "cancelled"
        errors = "; ".join(str(error.get("message", "")) for error in self.error_info or ())
        detail = f"{self.state or 'no state'}" + (f", {self.app_id}" if self.app_id else "")
        return Batch(str(self.id), phase, redacted(f"{detail}: {errors}" if errors else detail)[:500])


class LivyPage(msgspec.Struct):
    """A page of the list; `total` is not used, because the service's description of it is ambiguous."""

    sessions: list[LivyBatch] = []


class SynapseBatches:
    """The batches of one pool."""

    def __init__(
        self,
        settings: PoolSettings,
        token: Token,
        *,
        request_s: float = 30.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the pool and what gives tokens; nothing is opened yet.

        Raises:
            Refused: the workspace's address cannot be used.
        """
        self._settings = settings
        self._url = settings.url
        self._token = token
        self._request_s = request_s
        self._sleep = sleep
        self._chance = chance
        self._monotonic_s = monotonic_s
        self._next_create_s = 0.0

    async def create(self, run: RunId, request: RunRequest, *, within_s: float) -> Batch:
        body = self.payload(run, request)
        ends_s = self._monotonic_s() + within_s
        await self._token()  # first: a chain of identities may take long, and the request must begin in time
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(Throttled),
            stop=stop_before_delay(within_s),
            wait=self._pause_s,
            sleep=self._sleep,
            reraise=True,
        ):
            with attempt:
                await self._paced(run, ends_s)
                return _decoded(await self._once("POST", self._url, body), LivyBatch).batch
        raise AssertionError("the last attempt raises")

    async def _paced(self, run: RunId, ends_s: float) -> None:
        """Wait for this process's next turn: the service takes two creations a second of a whole workspace."""
        now_s = self._monotonic_s()
        turn_s = max(now_s, self._next_create_s)
        if turn_s > ends_s:
            raise Throttled(f"run {run} found no turn to be started in time; ask again", retry_after_s=turn_s - now_s)
        self._next_create_s = turn_s + 1 / CREATES_A_SECOND
        if turn_s > now_s:
            await self._sleep(turn_s - now_s)

    def payload(self, run: RunId, request: RunRequest) -> bytes:
        """The body that asks for a batch.

        Raises:
            NotRunnable: it is larger than the service takes.
        """
        chosen = self._settings
        body = msgspec.json.encode(
            {
                "name": name_of(run),
                "file": chosen.file,
                "pyFiles": chosen.python_files,
                "args": ["--run", run, *chosen.arguments, request.job, *request.arguments],
                "conf": dict(chosen.configuration),
                "tags": {TAG: run, "outbox-job": request.job},
                "driverMemory": chosen.memory,
                "driverCores": chosen.cores,
                "executorMemory": chosen.memory,
                "executorCores": chosen.cores,
                "numExecutors": chosen.executors,
            }
        )
        if len(body) > PAYLOAD_BYTES_MAX:
            raise NotRunnable(
                f"run {run} takes {len(body)} bytes to ask for, over {PAYLOAD_BYTES_MAX}; write what the job needs "
                "to a file and pass its name"
            )
        return body

    async def find(self, run: RunId) -> list[Batch]:
        for _ in range(LISTINGS_MAX):
            listed = await self._listed()
            if listed is not None:
                own = [batch for batch in listed.values() if _is_of(batch, run)]
                return [batch.batch for batch in sorted(own, key=lambda batch: batch.id)]
        raise OutcomeUnknown(
            f"the batches of pool {self._settings.pool} change faster than they can be listed; ask again"
        )

    async def _listed(self) -> dict[int, LivyBatch] | None:
        """All batches by id; None where some may have been passed over, because others went meanwhile."""
        found: dict[int, LivyBatch] = {}
        start = overlap = 0
        for _ in range(PAGES_MAX):
            url = f"{self._url}?from={start}&size={PAGE_COUNT}&detailed=true"
            page = _decoded(await self._asked("GET", url), LivyPage).sessions
            if overlap and not any(batch.id in found for batch in page):
                return None
            if all(batch.id in found for batch in page):
                return found
            found.update({batch.id: batch for batch in page})
            step = max(1, len(page) - OVERLAP_COUNT)
            start, overlap = start + step, len(page) - step
        raise OutcomeUnknown(
            f"pool {self._settings.pool} lists over {PAGES_MAX * PAGE_COUNT} batches; use one of its own"
        )

    async def get(self, batch: str) -> Batch | None:
        answer = await self._asked("GET", f"{self._url}/{int(batch)}?detailed=true", missing=True)
        return None if answer is None else _decoded(answer, LivyBatch).batch

    async def cancel(self, batch: str) -> None:
        await self._asked("DELETE", f"{self._url}/{int(batch)}", missing=True)

    async def _asked(self, method: str, url: str, *, missing: bool = False) -> bytes | None:
        """Ask for an answer, again where it fails; None for an absent thing, where `missing` allows it."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type((Throttled, OutcomeUnknown)),
            stop=stop_after_attempt(READ_COUNT_MAX),
            wait=self._pause_s,
            sleep=self._sleep,
            reraise=True,
        ):
            with attempt:
                return await self._once(method, url, missing=missing)
        raise AssertionError("the last attempt raises")

    def _pause_s(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked_s = error.retry_after_s if isinstance(error, Throttled) else 0.0
        own_s: float = 0.5 * 2 ** min(state.attempt_number - 1, 6) * (0.5 + self._chance())
        return min(PAUSE_S_MAX, max(asked_s, own_s))

    async def _once(self, method: str, url: str, body: bytes | None = None, *, missing: bool = False) -> bytes | None:
        """Send one request once.

        Raises:
            Refused, NotRunnable, Throttled: it had no effect.
            OutcomeUnknown: it may have had one.
        """
        what = f"{method} {urlsplit(url).path.rpartition('/sparkPools/')[2]}"
        headers = {"Authorization": f"Bearer {(await self._token()).token}", "Content-Type": "application/json"}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._request_s)) as session,
                session.request(method, url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                answer = await _whole(response)
                status, retry_after = response.status, response.headers.get("Retry-After", "")
        except aiohttp.ClientConnectorError as error:
            raise Throttled(f"{what}: no connection ({type(error).__name__}); nothing was asked") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise OutcomeUnknown(f"{what}: no answer ({type(error).__name__})") from error
        if status in (200, 201, 202) or (status == 404 and missing):
            return None if status == 404 else answer
        raise _error_of(what, status, answer, retry_after)


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """The body, if it is of a size that can be meant."""
    parts = bytearray()
    async for part in response.content.iter_chunked(1 << 16):
        parts += part
        if len(parts) > ANSWER_BYTES_MAX:
            raise OutcomeUnknown(f"an answer of {response.url.host} is over {ANSWER_BYTES_MAX} bytes")
    return bytes(parts)


def _error_of(what: str, status: int, answer: bytes, retry_after: str) -> Refused | OutcomeUnknown:
    text = f"{what}: {status} {redacted(answer[:2_000].decode(errors='replace'), is_cut=len(answer) > 2_000)[:300]}"
    if status == 429:
        return Throttled(text, retry_after_s=float(retry_after) if re.fullmatch(r"\d{1,4}", retry_after) else 0.0)
    if status in (401, 403):
        return Refused(f"{text}; the identity needs the Synapse role Compute Operator or Administrator")
    if status in (400, 413, 422):
        return NotRunnable(text)
    if status >= 500 or status == 408:
        return OutcomeUnknown(text)
    return Refused(f"{text}; look at the workspace, the pool and the file of the main definition")


def _decoded(answer: bytes | None, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer or b"", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OutcomeUnknown(f"an answer of the service is no {kind.__name__}: {error}") from error


def _is_of(batch: LivyBatch, run: RunId) -> bool:
    return (batch.tags or {}).get(TAG) == run or batch.name == name_of(run)


def name_of(run: RunId) -> str:
    """The name that a run's batch has: shown in consoles, and found again where tags are not kept."""
    return f"outbox-{run}"


def identity_token(
    *, monotonic_s: Callable[[], float] = time.monotonic, wall_s: Callable[[], float] = time.time
) -> Token:
    """Tokens of whoever this process is (a managed identity, `az login` on a desk), kept while they are good."""
    held: list[AccessToken] = []

    async def token() -> AccessToken:
        if held and held[0].expires_on - TOKEN_SPARE_S > wall_s():
            return held[0]
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity.aio import DefaultAzureCredential

        try:
            async with asyncio.timeout(TOKEN_S), DefaultAzureCredential() as credential:
                held[:] = [await credential.get_token(SCOPE)]
        except ClientAuthenticationError as error:
            raise Refused(f"no identity for Synapse: {redacted(str(error))[:300]}") from error
        except TimeoutError as error:
            raise Throttled(f"no token for Synapse within {TOKEN_S:g} s; ask again", retry_after_s=5.0) from error
        return held[0]

    return token


_conforms: type[Batches] = SynapseBatches
