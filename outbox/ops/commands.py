"""The work of each command: connect an operator, ask it, print the answer."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, redirect_stdout
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import msgspec

from outbox.errors import Refused
from outbox.ops import text
from outbox.ops.values import (
    WHO_LENGTH_MAX,
    DeadLetterFilter,
    DeadLetterView,
    FindQuery,
    NewMessage,
    Operator,
    PeekQuery,
    StreamQuery,
    TrimRequest,
    UnregisterRequest,
)
from outbox.printable import printable

if TYPE_CHECKING:
    from outbox.ops.stream_operator import StreamOperator

Options = argparse.Namespace


class Usage(Exception):
    """Arguments that contradict each other."""


def run(options: Options) -> None:
    """Run a parsed command line.

    Raises:
        Usage: arguments contradict each other.
        OutboxError, LookupError, OSError: it was refused.
    """
    COMMANDS[options.action](options)


# Projects


def new(options: Options) -> None:
    from outbox.ops.new import new_project

    made = new_project(options.name, Path.cwd())
    run = f"outbox run {made.package}.handlers:app --data {made.name}.data"
    steps = (f"cd {made.name}", "pip install -r requirements-dev.txt", "python -m pytest", run)
    text = "\n".join([f"{made.name}: {len(made.paths)} files; next:", "", *(f"    {step}" for step in steps)])
    _answer(options, {"folder": made.name, "package": made.package, "files": made.paths}, text)


# Hosts


def run_app(options: Options) -> None:
    """Serve an application; stdout gets one line, whatever the application prints."""
    _check_app_name(options.app)
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        _log_to_stderr()
        _check_sync(options.sync)
        from outbox.ops.endpoints import EndpointSettings
        from outbox.ops.loading import load_app

        _serve(
            options,
            out,
            app=load_app(options.app),
            worker_count=options.workers,
            concurrency=options.concurrency,
            thread_count=options.threads,
            history=options.history,
            replace_key=options.new_key,
            endpoints=EndpointSettings(
                options.amqp_port, options.cosmos_port, options.blob_port, options.http, tuple(options.http_name)
            ),
        )


def _check_app_name(name: str) -> None:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise Usage(f"APP {name!r} is not of the form module:attribute, as in bank:app")


def emulate(options: Options) -> None:
    _log_to_stderr()
    _check_sync(options.sync)
    from outbox.ops.endpoints import EndpointSettings

    _serve(options, sys.stdout, endpoints=EndpointSettings(options.amqp_port, options.cosmos_port, options.blob_port))


def _serve(options: Options, out: Any, **more: Any) -> None:
    from outbox.ops.host import HostSettings, serve

    settings = HostSettings(
        folder=options.data,
        entities=options.entities,
        sync=options.sync,
        accept_clock=options.accept_clock,
        **more,
    )
    asyncio.run(serve(settings, lambda line: print(line, file=out, flush=True)))


def _check_sync(policy: str) -> None:
    from outbox.engine.core import SyncPolicy

    try:
        SyncPolicy.parse(policy)
    except ValueError as error:
        raise Usage(str(error)) from error


def _log_to_stderr() -> None:
    import logging

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(text.LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


# Messages


def send(options: Options) -> None:
    check = _judge(options)
    if options.body == "-":
        from outbox.ops.send_lines import send_lines

        if options.id is not None:
            raise Usage("--id names one message; lines of stdin carry their own, or give --id-field")
        _done(options, asyncio.run(send_lines(options, cast(BufferedReader, sys.stdin.buffer), check)))
        return
    if options.id_field or options.key_field:
        raise Usage("--id-field and --key-field go with - only")
    if options.id == "":
        raise Usage("--id is empty; leave it out for a fresh one")
    id = options.id or str(uuid4())
    message = NewMessage(
        id=id,
        body=msgspec.Raw(_encoded(options.body)),
        type=options.type,
        created=options.created,
        key=options.key,
        correlation_id=options.correlation_id,
    )
    _check_json(options.body)
    checked = check(message)
    _ask(options, lambda operator: operator.send(options.queue, [checked]))
    _done(options, {"queue": options.queue, "count": 1, "ids": [id]})


def _judge(options: Options) -> Callable[[NewMessage], NewMessage]:
    """The check of a message before it is sent, by the application of --app; without one the host checks it."""
    if options.app is None:
        return lambda message: message
    _check_app_name(options.app)
    with redirect_stdout(sys.stderr):  # stdout gets the answer, whatever the application prints
        from outbox.ops.loading import load_app
        from outbox.ops.sending import as_handled

        app = load_app(options.app)
    app.destination(options.queue)
    return lambda message: as_handled(app, options.queue, message)


def _done(options: Options, sent: dict[str, Any]) -> None:
    what = f"{sent['ids'][0]}" if sent["count"] == 1 else f"{sent['count']} messages"
    _answer(options, sent, f"sent {what} to {options.queue}")


def _check_json(body: str) -> None:
    try:
        msgspec.json.decode(_encoded(body))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(f'the message is not JSON: {error}; quote it as in \'{{"id": "t1"}}\'') from error


def _encoded(body: str) -> bytes:
    try:
        return body.encode()
    except UnicodeEncodeError as error:
        raise Refused(f"the message is not UTF-8: {error}") from error


# Looking


def status(options: Options) -> None:
    found = _ask(options, lambda operator: operator.status())
    _answer(options, found, _and_whether_hosted(options, text.status(found)))


def _and_whether_hosted(options: Options, shown: str) -> str:
    """A text, and a line below it where no process has the folder, so that nothing in it is handled."""
    from outbox.ops.control_file import is_held

    if options.data is None or is_held(options.data):
        return shown
    return f"{shown}\nno host runs on this folder: nothing is handled until `outbox run APP --data {options.data}` does"


def doctor(options: Options) -> None:
    """Print what is wrong, with the cure of each.

    Raises:
        Refused: there are errors.
    """
    from outbox.ops.doctor import examine

    found = _ask(options, lambda operator: examine(operator, options.data))
    _answer(options, found, text.findings(found))
    errors = sum(finding.level == "error" for finding in found)
    if errors:
        raise Refused(f"{errors} error{'s' if errors > 1 else ''}; each line names its cure")


def describe(options: Options) -> None:
    """Print what an application takes and sends, as a document for tools."""
    from outbox.describe import asyncapi, openapi
    from outbox.ops.loading import load_app

    _check_app_name(options.app)
    with redirect_stdout(sys.stderr):
        app = load_app(options.app)
    made = openapi(app) if options.http else asyncapi(app)
    print(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())


def state(options: Options) -> None:
    found = _ask(options, lambda operator: operator.state(options.type, options.key, options.kind))
    if options.json:
        sys.stdout.buffer.write((found or b"null") + b"\n")
    elif found is None:
        print(f"{options.type} {options.key}: none")
    else:
        print(f"{options.type} {options.key}\n{text.indented(found)}")


def export(options: Options) -> None:
    """Write states as JSON lines; a file appears only when it is complete."""

    async def write(operator: Any, out: Any) -> int:
        count = 0
        async for piece in operator.export(options.type):
            count += piece.count(b"\n")
            out.write(piece)
        out.flush()
        return count

    if options.output is None:
        _ask(options, lambda operator: write(operator, sys.stdout.buffer))
        return
    temporary = options.output.with_name(options.output.name + ".tmp")
    with temporary.open("wb") as out:
        count = _ask(options, lambda operator: write(operator, out))
    temporary.replace(options.output)
    answer = {"count": count, "output": str(options.output)}
    _answer(options, answer, f"exported {count} states to {options.output}")


def peek(options: Options) -> None:
    asked = PeekQuery(options.queue, options.after, options.limit, options.state or "", options.key)
    found = _ask(options, lambda operator: operator.peek(asked))
    _answer(options, found, _and_whether_hosted(options, text.messages(options.queue, found)))


def show_message(options: Options) -> None:
    """Show where a message is, why it is there, and its body."""
    asked = FindQuery(options.id, options.queue)
    found = _ask(options, lambda operator: operator.find(asked))
    _answer(options, found, text.found_messages(found))


def list_scheduled(options: Options) -> None:
    """List what is scheduled in a queue and not due yet."""
    asked = PeekQuery(options.queue, options.after, options.limit, "scheduled")
    found = _ask(options, lambda operator: operator.peek(asked))
    _answer(options, found, text.messages(options.queue, found))


def cancel(options: Options) -> None:
    done = _ask(options, lambda operator: operator.cancel(options.queue, options.id))
    _answer(options, done, f"cancelled {done.id} in {options.queue}")


def list_pending(options: Options) -> None:
    """List what was committed and is not finished; of a transaction, if one is named, with its outputs."""
    found = _ask(options, lambda operator: operator.pending())
    if options.tx is not None:
        found = [view for view in found if view.tx.startswith(options.tx)]
        if not found:
            raise LookupError(f"nothing is pending of {options.tx!r}; `outbox pending list` shows what is")
    _answer(
        options,
        found,
        text.pending(found, in_full=options.action == "pending explain", on_engine=options.data is not None),
    )


def finish_pending(options: Options) -> None:
    """Finish what is pending.

    Raises:
        Refused: some of it cannot be finished now; the text says why.
    """
    if (options.tx is None) is not options.all:
        raise Usage("name one TX, or give --all")
    done = _ask(options, lambda operator: operator.finish(options.tx or ""))
    young = f"; {done.young} younger than a minute, which workers finish themselves" if done.young else ""
    _answer(options, done, f"finished {done.finished}{young}")
    if done.left or done.troubles:
        why = "; ".join(done.troubles) or "what they wait for is not there yet"
        raise Refused(f"{done.left} could not be finished: {why}")


# Dead letters


def list_dead_letters(options: Options) -> None:
    """List the dead letters of a queue, or of all; or groups of those that went wrong alike."""
    from outbox.ops import dead_letters

    found = _ask(options, lambda operator: _dead_letters(operator, options))
    if options.group:
        groups = dead_letters.grouped(found)
        _answer(options, groups, text.dead_letter_groups(groups))
    else:
        _answer(options, found, text.dead_letters(options.queue or "no queue", found, named=options.queue is None))


async def _dead_letters(operator: Operator, options: Options) -> list[DeadLetterView]:
    """Those that the options mean; they may be fewer than are there by --limit."""
    from outbox.ops.dead_letters import found_in, queues_with_dead_letters

    now_s = time.time()
    where = DeadLetterFilter(
        options.reason,
        options.type,
        options.text,
        0 if options.newer is None else max(0, now_s - options.newer),
        1e11 if options.older is None else max(0, now_s - options.older),
    )
    queues = [options.queue] if options.queue is not None else await queues_with_dead_letters(operator)
    return await found_in(operator, queues, where, options.limit)


def show_dead_letter(options: Options) -> None:
    found = _ask(options, lambda operator: operator.dead_letter(options.queue, options.id))
    _answer(options, found, text.indented(msgspec.json.encode(found)))


def resubmit(options: Options) -> None:
    _move(options, "resubmitted", lambda operator, id: operator.resubmit(options.queue, id))


def discard(options: Options) -> None:
    _move(options, "discarded", lambda operator, id: operator.discard(options.queue, id))


def _move(options: Options, verb: str, move: Callable[[Any, str | None], Awaitable[Any]]) -> None:
    filters = [name for name in ("reason", "type", "text", "newer", "older", "limit", "rate") if getattr(options, name)]
    if options.id is not None and (options.all or filters):
        raise Usage(f"ID names one dead letter; leave --{filters[0] if filters else 'all'} out, or ID")
    if options.id is None and not (options.all or filters):
        raise Usage("name one ID, or say which: --all, --reason, --text and so on")
    if filters:
        _move_some(options, verb)
        return
    moved = _ask(options, lambda operator: move(operator, options.id))
    why = "a receiver has them" + (", or they were too-old" if verb == "resubmitted" and options.all else "")
    left = f"; {moved.in_hand} left, {why}" if moved.in_hand else ""
    which = f": {moved.id!r}" if isinstance(moved.id, str) and moved.id != options.id else ""
    _answer(options, moved, f"{verb} {moved.count} of {options.queue}{which}{left}")


def _move_some(options: Options, verb: str) -> None:
    """Move those that a filter means, at a pace.

    Raises:
        Refused: the filter means none, or one that was resubmitted has come back.
    """
    from outbox.ops.dead_letters import MovedGroup, discard_all, resubmit_all

    async def move(operator: Operator) -> MovedGroup:
        found = await _dead_letters(operator, options)
        if not found:
            raise Refused(f"no dead letter of {options.queue} is meant; `outbox dead-letters list` shows what is there")
        return await (resubmit_all if verb == "resubmitted" else discard_all)(operator, found, a_second=options.rate)

    moved = _ask(options, move)
    left = f"; {moved.left} left" if moved.left else ""
    _answer(options, moved, f"{verb} {moved.count} of {options.queue}{left}")
    if moved.relapsed:
        again = f"outbox dead-letters show {options.queue} {moved.relapsed}"
        raise Refused(f"{moved.relapsed!r} is a dead letter again, so no more are resubmitted; look at it: {again}")


# Ordered logs


def list_streams(options: Options) -> None:
    found = _ask(options, lambda operator: operator.streams())
    _answer(options, found, text.streams(found))
    if options.data is None and not (found.logs or found.processors):
        where = options.blob_states or f"{options.database}/{options.container}"
        option = "--blob-states" if options.blob_states else "--database and --container"
        print(f"outbox: nothing in {printable(where)}; {option} may name another place", file=sys.stderr)


def read_stream(options: Options) -> None:
    """Write entries as JSON lines, as they come."""

    asked = StreamQuery(options.name, options.row or "", options.since or "", options.limit)

    async def write(operator: Any) -> None:
        async for piece in operator.stream(asked):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()

    _check_log_name(options.name)
    _ask(options, write)


def unregister_stream(options: Options) -> None:
    _check_log_name(options.name)
    if not 1 <= len(options.who) <= WHO_LENGTH_MAX:
        raise Usage("WHO is no name of a reader or writer; `outbox stream list` has them")
    done = _ask(options, lambda operator: operator.unregister_stream(UnregisterRequest(options.name, options.who)))
    behind = ", ".join(f"row {row} by {count} cells" for row, count in done.behind.items())
    _answer(options, done, f"{options.name} has forgotten {printable(options.who)}, which was behind in {behind}")


def trim_stream(options: Options) -> None:
    _check_log_name(options.name)
    if options.margin <= 0:
        raise Usage("--margin is 0; a tombstone lasts for as long as a replica may be paused, 10min or more")
    asked = TrimRequest(options.name, options.min_age, options.margin)
    done = _ask(options, lambda operator: operator.trim_stream(asked))
    floors = ", ".join(f"{row} at {floor}" for row, floor in done.floors.items())
    _answer(options, done, f"trimmed {done.cells} cells of {options.name}; floors: {floors}")


def _check_log_name(name: str) -> None:
    if not name:
        raise Usage("NAME is empty; `outbox stream list` has the names")


# The log


def log_command(options: Options) -> None:
    """Inspect, compact or salvage; `logs` has the parts without a running engine."""
    from outbox.ops import logs

    if options.action == "log compact" and not options.sealed:
        done = _ask(options, lambda operator: operator.compact())
        line = f"{options.data}: snapshot at {done.ordinal}, log {done.before_bytes} -> {done.after_bytes} bytes"
    elif options.action == "log compact":
        done, line = logs.compact_sealed(options.data)
    elif options.action == "log inspect":
        done, line = logs.inspect(options.data)
    else:
        done, line = logs.salvage(options.data, options.into)
    _answer(options, done, line)


def audit(options: Options) -> None:
    """Print the verdict over a history.

    Raises:
        Refused: a promise does not hold.
    """
    from outbox.ops.audit import as_json, judge

    verdict = judge(options.history, alone=options.alone)
    print(as_json(verdict).decode() if options.json else verdict.text)
    if not verdict.ok:
        raise Refused(f"{options.history}: a promise does not hold; the line it names shows where")


def bench(options: Options) -> None:
    """Run W1 on this machine or on Azure, where the project's benchmarks are at hand; nothing is published.

    Raises:
        Usage: options do not fit together.
        Refused: the benchmarks are not here, because they are not part of the installed package.
    """
    from importlib import import_module
    from tempfile import TemporaryDirectory

    _find_benchmarks()
    with TemporaryDirectory(prefix="outbox-bench-") as output:
        if options.azure:
            _bench_azure(options, Path(output))
            return
        if options.cosmos or options.servicebus or options.output:
            raise Usage("--cosmos, --servicebus and --output are for --azure; add it, or leave them out")
        counts = ["--messages", str(options.messages or 5_000), "--repeats", str(options.repeats)]
        only = ["--only", "outbox", "sqlite", "--output", output]
        code = import_module("tests.benchmarks.run").main([*counts, *only])
    if code:
        raise Refused("the benchmarks did not run through; see above")


def _bench_azure(options: Options, scratch: Path) -> None:
    from importlib import import_module

    for name, part in (("cosmos", "AccountKey="), ("servicebus", "SharedAccessKey=")):
        if part not in getattr(options, name):
            raise Usage(f"--{name} needs a connection string: databases and queues are made, for which an identity's "
                        "roles on data are not enough")  # fmt: skip
    folder = options.output or scratch
    folder.mkdir(parents=True, exist_ok=True)
    limits = {"message_count": options.messages or 300, "ru_max": options.ru_max, "repeats": options.repeats}
    print(import_module("tests.benchmarks.bench_account").run(options.cosmos, options.servicebus, folder, **limits))


def _find_benchmarks() -> None:
    """Make the project's benchmarks importable.

    Raises:
        Refused: they are not here.
    """
    from importlib import util

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = util.find_spec("tests.benchmarks.run")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise Refused(f"the benchmarks are not in {here}; run this in a checkout of the project, or `make bench` there")


def _ask(options: Options, ask: Callable[[Any], Awaitable[Any]]) -> Any:
    """Connect an operator for the folder, for the application on Azure or for ordered logs there, and ask it."""

    async def asked() -> Any:
        async with _connected(options) as operator:
            return await ask(operator)

    return asyncio.run(asked())


def _connected(options: Options) -> AbstractAsyncContextManager[Operator | StreamOperator]:
    if options.data is not None:
        from outbox.ops.connect_operator import connect_operator

        return connect_operator(options.data, accept_clock=options.accept_clock)
    import logging

    from outbox.ops.store_operator import Addresses, connect_azure_operator

    logging.getLogger("azure").addHandler(logging.NullHandler())  # its lines about connections are no answer
    names = ("cosmos", "servicebus", "database", "container", "states", "blobs", "blob_states")
    addresses = Addresses(**{name: getattr(options, name, "") for name in names})
    if not hasattr(options, "blob_states"):
        return connect_azure_operator(addresses)
    from outbox.ops.stream_operator import connect_stream_operator

    return connect_stream_operator(addresses)


def _answer(options: Options, value: Any, line: str) -> None:
    """Print an answer: JSON where asked for, else its text."""
    print(msgspec.json.encode(value).decode() if options.json else line)


COMMANDS: dict[str, Callable[[Options], None]] = {
    "new": new,
    "run": run_app,
    "emulator": emulate,
    "describe": describe,
    "send": send,
    "status": status,
    "doctor": doctor,
    "state": state,
    "export": export,
    "queue peek": peek,
    "message show": show_message,
    "schedule list": list_scheduled,
    "schedule cancel": cancel,
    "pending list": list_pending,
    "pending explain": list_pending,
    "pending finish": finish_pending,
    "dead-letters list": list_dead_letters,
    "dead-letters show": show_dead_letter,
    "dead-letters resubmit": resubmit,
    "dead-letters discard": discard,
    "stream list": list_streams,
    "stream read": read_stream,
    "stream unregister": unregister_stream,
    "stream trim": trim_stream,
    "log inspect": log_command,
    "log compact": log_command,
    "log salvage": log_command,
    "audit": audit,
    "bench": bench,
}
