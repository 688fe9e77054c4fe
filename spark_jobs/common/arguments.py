"""Shared command lines of the jobs: the names of inputs, the connection, and the ends of errors.

Exit codes: 0 done, 1 refused or not finished, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from outbox.errors import OutboxError, Refused
from spark_jobs.common import java
from spark_jobs.common.patience import GaveUpError
from spark_jobs.common.tasks import failure_of
from spark_jobs.reading.source import FORMATS, Dialect, Source
from spark_jobs.session import session

CONNECTION_VARIABLE = "OUTBOX_SERVICEBUS"
HOST_VARIABLE = f"{CONNECTION_VARIABLE}__fullyQualifiedNamespace"
CONNECTION_HELP = f"a host name or a connection string; default: {CONNECTION_VARIABLE}, else {HOST_VARIABLE}"
SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"  # spark-submit has started the JVM already
ERROR_CHARACTERS = 2_000
INTERRUPTED = 130

Say = Callable[[str], None]


def to_stderr(text: str) -> None:
    """One line of progress; what a program reads is on standard output."""
    print(text, file=sys.stderr, flush=True)


def silent(text: str) -> None:
    """Say nothing."""


def add_input(parser: argparse.ArgumentParser, *, required: bool = True, several: bool = False) -> None:
    """--input and how to read it."""
    what = "a file or folder of CSV, JSON lines or Parquet, or its address"
    if several:
        parser.add_argument(
            "--input", action="append", required=required, metavar="PLACE", help=f"{what}; may be repeated"
        )
    else:
        parser.add_argument("--input", required=required, default="", metavar="PLACE", help=what)
    parser.add_argument("--format", choices=FORMATS, default="", help="default: by the name's ending")
    parser.add_argument("--schema", default="", metavar="DDL", help="for example 'id string, amount bigint'")
    parser.add_argument("--separator", default=",", metavar="SIGN", help="between CSV's fields; default: a comma")
    parser.add_argument("--quote", default='"', metavar="SIGN", help="round CSV's fields; '' for none")
    parser.add_argument("--escape", default="", metavar="SIGN", help="before a quote inside quotes; default: doubled")
    parser.add_argument("--encoding", default="utf-8", metavar="NAME", help="of CSV, for example latin-1")
    parser.add_argument("--multiline", action="store_true", help="quoted fields of CSV may have line feeds")
    parser.add_argument("--option", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--id", action="append", default=[], metavar="COLUMN", help="may be repeated; default: id")


def add_common(parser: argparse.ArgumentParser) -> None:
    """--master, --quiet and --json."""
    parser.add_argument("--master", help="a Spark master; default: spark-submit's, else local[2]")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")


def source_of(arguments: argparse.Namespace, path: str | None = None) -> Source:
    """The input that the arguments name, or this one of them.

    Raises:
        Refused: a dialect that is none, or an option of Spark's reader.
    """
    if arguments.option:
        raise Refused(
            f"--option {arguments.option[0]} was for Spark's reader, which reads no more; there are --separator, "
            "--quote, --escape, --encoding and --multiline"
        )
    dialect = Dialect(
        arguments.separator, arguments.quote, arguments.escape, arguments.encoding, arguments.multiline
    )  # fmt: skip
    return Source(arguments.input if path is None else path, arguments.format, arguments.schema, dialect)


def connection_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> str:
    """A connection string or host name: the argument's, else the environment's, which no list of processes shows.

    Raises:
        Refused: none is given.
    """
    connection = str(arguments.connection or environ.get(CONNECTION_VARIABLE) or environ.get(HOST_VARIABLE, ""))
    if not connection:
        raise Refused(
            f"no connection: set {HOST_VARIABLE} to a host name (bank.servicebus.windows.net), or "
            f"{CONNECTION_VARIABLE} to a connection string (`outbox run` prints one that begins with Endpoint=sb://); "
            "or give --connection"
        )
    return connection.strip()


def start(app_name: str, arguments: argparse.Namespace, environ: MutableMapping[str, str]) -> SparkSession:
    """The session to work in.

    Raises:
        Refused: no Java that Spark runs on.
    """
    submitted = SUBMITTED_VARIABLE in environ
    if not submitted:
        java.prepare(environ)
    with interrupted_at_once():
        return session(app_name, arguments.master, submitted=submitted)


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Let SIGINT end this process as SIGTERM does, which has nothing to tidy up yet.

    An exception would go through PySpark's launch, which then leaves a Java behind that waits for ever.
    """
    is_main = threading.current_thread() is threading.main_thread()
    is_usual = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if is_usual and signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # else it is Spark's, which cancels jobs
            signal.signal(signal.SIGINT, signal.default_int_handler)


def ended(name: str, run: Callable[[], int]) -> int:
    """Run a job; an error that somebody foresaw ends in one text and exit code 1 instead of a traceback."""
    try:
        return run()
    except KeyboardInterrupt:
        print(f"{name}: interrupted; the same command goes on where it was", file=sys.stderr, flush=True)
        return INTERRUPTED
    except (OutboxError, GaveUpError, PySparkException, Py4JError, ConnectionError, ValueError) as error:
        print(f"{name}: {text_of(error)}", file=sys.stderr, flush=True)
        return 1


def text_of(error: Exception) -> str:
    """The text of an error, without the stacks of Spark."""
    said = failure_of(error) if isinstance(error, Py4JError | ConnectionError) else str(error)
    lines = said.split("\nJVM stacktrace")[0].strip().splitlines() or [type(error).__name__]
    python = [line for line in lines if line.strip()][-1:] if "Traceback" in said else lines
    return "\n".join(python)[:ERROR_CHARACTERS]
