"""Spark jobs of an application: requests, runs, and the port that starts them.

`ctx.submit_spark_job` captures a `RunRequest` as an output on the reserved queue `SPARK_RUNS`, so it commits with the
handler's state or not at all.  The handler of that queue passes it to `SparkRuns`, which starts each run once, however
often it is asked.  Nothing here knows Synapse or spark-submit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NewType, Protocol

import msgspec

from outbox.errors import OutcomeUnknown, Refused

SPARK_RUNS = "spark-runs"
"""The queue of requests for runs."""

RUN_TYPE = "outbox.spark-run"
"""Their type on the wire."""

ARGUMENT_BYTES_MAX = 32_000
"""The size limit of all arguments of a run: Synapse allows 100 kB for a whole request."""
ARGUMENT_COUNT_MAX = 200

RunId = NewType("RunId", str)
"""The id of a run: the identity of the message that requests it, so the same for every attempt."""

Phase = Literal["waiting", "submitted", "running", "succeeded", "failed", "cancelled", "unknown"]
"""`waiting`: not started yet; `submitted`: the service has it; `unknown`: no service has a run of this id any more."""

ENDED: frozenset[Phase] = frozenset(("succeeded", "failed", "cancelled"))

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_JOB = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,59}")
_SECRET = re.compile(
    r"(?i)(SharedAccessKey|AccountKey|SharedAccessSignature|password|pwd|\bpw)\s*=|[?&]sig=|\bBearer\s+\S{8}"
)


class RunRequest(msgspec.Struct, frozen=True):
    """A request for a run of a job with these command-line arguments."""

    job: str
    arguments: tuple[str, ...] = ()


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a run; `batch` is its id in the service that runs it, `detail` a failure's reason."""

    run: str
    job: str = ""
    phase: Phase
    batch: str = ""
    detail: str = ""


class RunPending(OutcomeUnknown):
    """Another caller may be starting the run; ask again after `after_s` seconds, under the same id."""

    def __init__(self, message: str, *, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


class NotRunnable(Refused):
    """The run can never be started as requested; nothing was started."""


class SparkRuns(Protocol):
    """Starts Spark jobs, each run once."""

    async def submit(self, run: RunId, request: RunRequest) -> RunStatus:
        """Start a run, or return its status; any number of callers may ask, concurrently and repeatedly.

        Raises:
            RunPending: another caller may be starting it; ask again later.
            OutcomeUnknown: it may have been started; ask again later.
            Throttled: nothing was started; ask again later.
            NotRunnable: it can never be started as requested; the text says what to change.
            Refused: nothing was started; the operator of this service has to fix something.
        """

    async def status(self, run: RunId) -> RunStatus:
        """The status of a run.

        Raises:
            OutcomeUnknown, Throttled: it cannot be read now.
        """

    async def cancel(self, run: RunId) -> RunStatus:
        """Cancel a run, also before its start; an ended run is unchanged.

        Raises:
            OutcomeUnknown, Throttled: ask again.
        """


def run_id(text: str) -> RunId:
    """Check the id of a run.

    Raises:
        Refused: it is invalid.
    """
    if not _RUN_ID.fullmatch(text):
        raise Refused(
            f"{text[:80]!r} cannot be the id of a run: use 1 to 120 letters, digits, dots, dashes, underscores"
        )
    return RunId(text)


def run_request(job: str, arguments: Sequence[str] = ()) -> RunRequest:
    """Make a valid request.

    Raises:
        NotRunnable: the job's name or its arguments are invalid.
    """
    if isinstance(arguments, str) or not all(isinstance(argument, str) for argument in arguments):
        raise NotRunnable(f"{job}: the arguments are a list of texts, such as ['--input', 'transfers.csv']")
    if not _JOB.fullmatch(job):
        raise NotRunnable(f"{job[:80]!r} cannot be a Spark job; it is the name of a module, such as feed")
    try:
        size_bytes = sum(len(argument.encode()) + 3 for argument in arguments)
    except UnicodeEncodeError as error:
        raise NotRunnable(f"{job}: an argument holds half of a surrogate pair; keep texts Unicode") from error
    if len(arguments) > ARGUMENT_COUNT_MAX or size_bytes > ARGUMENT_BYTES_MAX:
        raise NotRunnable(
            f"{job}: {len(arguments)} arguments take {size_bytes} bytes, over {ARGUMENT_COUNT_MAX} or "
            f"{ARGUMENT_BYTES_MAX} bytes; write what the job needs to a file or blob and pass its name"
        )
    if any(_SECRET.search(argument) for argument in arguments):
        raise NotRunnable(
            f"{job}: an argument looks like a secret, and arguments are visible to every reader of the workspace; "
            "name a secret of Key Vault in the settings instead"
        )
    return RunRequest(job, tuple(arguments))
