"""The work of each command: connect an operator, ask it, print the answer."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import BufferedReader
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import msgspec

from outbox.errors import Refused
from outbox.escape import printable
from outbox.ops import folder_commands, text
from outbox.ops import message_commands as on_messages
from outbox.ops import state_commands as on_states
from outbox.ops.asking import Options, Usage, and_whether_hosted, answer, ask, talk, with_folder
from outbox.ops.piped import write_piece
from outbox.ops.stream_values import WHO_LENGTH_MAX, ListStreams, ReadStream, TrimStream, Unregister
from outbox.ops.values import Compact, Export, NewMessage, ReadMetrics, ReadState, ReadStatus, Send


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
    answer(options, {"folder": made.name, "package": made.package, "files": made.paths}, text)


def completion(options: Options) -> None:
    from outbox.ops.completion import completion_script

    script = completion_script(options.whole, options.shell)
    answer(options, {"shell": options.shell, "script": script}, script)


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
                options.amqp_port,
                options.cosmos_port,
                options.blob_port,
                options.http,
                tuple(options.http_name),
                options.metrics_port,
            ),
            sampled=options.telemetry,
        )


def _check_app_name(name: str) -> None:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise Usage(f"APP {name!r} is not of the form module:attribute, as in bank:app")


def emulate(options: Options) -> None:
    _log_to_stderr()
    _check_sync(options.sync)
    from outbox.ops.endpoints import EndpointSettings

    endpoints = EndpointSettings(options.amqp_port, options.cosmos_port, options.blob_port)
    if not endpoints.ports:
        raise Usage("an emulator of nothing: leave out --amqp-port none, or give --cosmos-port or --blob-port")
    _serve(options, sys.stdout, endpoints=endpoints)


def _serve(options: Options, out: Any, **more: Any) -> None:
    from outbox.ops.host import HostSettings, serve

    settings = HostSettings(
        folder=options.data,
        entities=options.entities,
        sync=options.sync,
        accept_clock=options.accept_clock,
        new=options.new,
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
    check, due = _judge(options), _due(options)
    if options.body == "-":
        from outbox.ops.send_lines import send_lines

        if options.id is not None:
            raise Usage("--id names one message; lines of stdin carry their own, or give --id-field")
        _done(options, asyncio.run(send_lines(options, cast(BufferedReader, sys.stdin.buffer), check, due=due)), due)
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
    ask(options, Send(options.queue, [checked], due=due))
    _done(options, {"queue": options.queue, "count": 1, "ids": [id]}, due)


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


def _due(options: Options) -> float | None:
    """When the messages are due, in seconds since 1970; None for now."""
    if options.at is not None and options.in_s is not None:
        raise Usage("--at and --in name two times; keep one")
    due: float | None = options.at if options.in_s is None else time.time() + options.in_s
    return due


def _done(options: Options, sent: dict[str, Any], due: float | None) -> None:
    what = f"{sent['ids'][0]}" if sent["count"] == 1 else f"{sent['count']} messages"
    later = "" if due is None else f", due at {text.utc(due)}"
    answer(options, sent if due is None else {**sent, "due": due}, f"sent {what} to {options.queue}{later}")
    if options.app is None and sent["count"]:
        _say_unchecked(options)


def _say_unchecked(options: Options) -> None:
    """Say on stderr that no application has checked what was sent, where none can have."""
    from outbox.ops.control_file import is_held

    why = "" if options.data is None else "no host runs on this folder, so "
    if options.data is None or not is_held(options.data):
        cure = "with --app module:attribute one does, before it is sent"
        print(f"outbox: {why}no application has checked this; {cure}", file=sys.stderr)


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


def metrics(options: Options) -> None:
    found = ask(options, ReadMetrics())
    answer(options, {"metrics": found}, found.rstrip("\n"))


def status(options: Options) -> None:
    found = ask(options, ReadStatus())
    answer(options, found, and_whether_hosted(options, with_folder(options, text.status(found))))


def doctor(options: Options) -> None:
    """Print what is wrong, with the cure of each.

    Raises:
        Refused: there are errors.
    """
    from outbox.ops.doctor import examine

    found = talk(options, lambda admin: examine(admin, options.data))
    found = [msgspec.structs.replace(each, cure=with_folder(options, each.cure)) for each in found]
    answer(options, found, text.findings(found))
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
    found = ask(options, ReadState(options.type, options.key, options.kind))
    if options.json:
        sys.stdout.buffer.write((found or b"null") + b"\n")
    elif found is None:
        print(f"{options.type} {options.key}: none")
    else:
        print(f"{options.type} {options.key}\n{text.indented(found)}")


def export(options: Options) -> None:
    """Write states as JSON lines; a file appears only when it is complete."""

    async def write(admin: Any, out: Any) -> int:
        count = 0
        async for piece in admin.stream(Export(options.type)):
            count += piece.count(b"\n")
            await write_piece(out, piece)
        out.flush()
        return count

    if options.output is None:
        talk(options, lambda admin: write(admin, sys.stdout.buffer))
        return
    temporary = options.output.with_name(options.output.name + ".tmp")
    with temporary.open("wb") as out:
        count = talk(options, lambda admin: write(admin, out))
    temporary.replace(options.output)
    done = {"count": count, "output": str(options.output)}
    answer(options, done, f"exported {count} states to {options.output}")


# Ordered logs


def list_streams(options: Options) -> None:
    found = ask(options, ListStreams())
    answer(options, found, text.streams(found))
    if found.logs or found.processors:
        return
    if options.data is not None:
        where = "--cosmos, or --blobs and --blob-states, in place of --data look in its host's endpoints"
        print(f"outbox: nothing in the engine of {printable(str(options.data))}; {where}", file=sys.stderr)
    else:
        where = options.blob_states or f"{options.database}/{options.container}"
        option = "--blob-states" if options.blob_states else "--database and --container"
        print(f"outbox: nothing in {printable(where)}; {option} may name another place", file=sys.stderr)


def read_stream(options: Options) -> None:
    """Write entries as JSON lines, as they come."""

    asked = ReadStream(options.name, options.row or "", options.since or "", options.limit)

    async def write(admin: Any) -> None:
        async for piece in admin.stream(asked):
            await write_piece(sys.stdout.buffer, piece)
        sys.stdout.buffer.flush()

    _check_log_name(options.name)
    talk(options, write)


def unregister_stream(options: Options) -> None:
    _check_log_name(options.name)
    if not 1 <= len(options.who) <= WHO_LENGTH_MAX:
        raise Usage("WHO is no name of a reader or writer; `outbox stream list` has them")
    done = ask(options, Unregister(options.name, options.who))
    behind = ", ".join(f"row {row} by {count} cells" for row, count in done.behind.items())
    answer(options, done, f"{options.name} has forgotten {printable(options.who)}, which was behind in {behind}")


def trim_stream(options: Options) -> None:
    _check_log_name(options.name)
    if options.margin <= 0:
        raise Usage("--margin is 0; a tombstone lasts for as long as a replica may be paused, 10min or more")
    asked = TrimStream(options.name, options.min_age, options.margin)
    done = ask(options, asked)
    floors = ", ".join(f"{row} at {floor}" for row, floor in done.floors.items())
    answer(options, done, f"trimmed {done.cells} cells of {options.name}; floors: {floors}")


def _check_log_name(name: str) -> None:
    if not name:
        raise Usage("NAME is empty; `outbox stream list` has the names")


# The log


def log_command(options: Options) -> None:
    """Inspect, compact or salvage; `logs` has the parts without a running engine."""
    from outbox.ops import logs

    done: Any
    if options.action == "log compact" and not options.sealed:
        done = ask(options, Compact())
        line = f"{options.data}: snapshot at {done.ordinal}, log {done.before_bytes} -> {done.after_bytes} bytes"
    elif options.action == "log compact":
        done, line = logs.compact_sealed(options.data)
    elif options.action == "log inspect":
        done, line = logs.inspect(options.data)
    else:
        done, line = logs.salvage(options.data, options.into)
    answer(options, done, line)


def audit(options: Options) -> None:
    """Print the verdict over a history.

    Raises:
        Refused: a promise does not hold.
    """
    from outbox.ops.audit import as_json, judge

    verdict = judge(options.history, alone=options.alone)
    print(as_json(verdict).decode() if options.json else verdict.text)
    if verdict.is_open:
        raise Refused(
            f"{options.history}: it is not decided yet; start the host again with the same --history, end it by Ctrl-C "
            "when its queues are empty, and audit again"
        )
    if not verdict.ok:
        raise Refused(f"{options.history}: a promise does not hold; the line it names shows where")


def bench(options: Options) -> None:
    """Run W1 on the disk of the current folder, or on Azure; nothing is published.

    Raises:
        Usage: options do not fit together.
        Refused: an account could not be measured, or the SDKs are not installed.
    """
    from tempfile import TemporaryDirectory

    if not options.azure and (options.cosmos or options.servicebus or options.output):
        raise Usage("--cosmos, --servicebus and --output are for --azure; add it, or leave them out")
    with TemporaryDirectory(prefix=".outbox-bench-", dir=Path.cwd()) as scratch:
        if options.azure:
            _bench_azure(options, Path(scratch))
        else:
            from outbox_bench import w1

            here, message_count = Path(scratch), options.messages or 5_000
            print(w1.publish(w1.entrants(), options.repeats, message_count, scratch=here, folder=here))


def _bench_azure(options: Options, scratch: Path) -> None:
    from importlib import import_module

    for name, part in (("cosmos", "AccountKey="), ("servicebus", "SharedAccessKey=")):
        if part not in getattr(options, name):
            raise Usage(f"--{name} needs a connection string: databases and queues are made, for which an identity's "
                        "roles on data are not enough")  # fmt: skip
    try:
        import_module("outbox.azure")
    except ImportError as error:
        raise Refused(str(error)) from None
    from outbox_bench import account

    folder = options.output or scratch
    folder.mkdir(parents=True, exist_ok=True)
    limits = {"message_count": options.messages or 300, "ru_max": options.ru_max, "repeats": options.repeats}
    print(account.run(options.cosmos, options.servicebus, folder, **limits))


COMMANDS: dict[str, Callable[[Options], None]] = {
    "new": new,
    "run": run_app,
    "emulator": emulate,
    "completion": completion,
    "describe": describe,
    "send": send,
    "status": status,
    "metrics": metrics,
    "doctor": doctor,
    "state show": state,
    "state history": on_states.history,
    "state export": on_states.export_states,
    "state import": on_states.import_states,
    "export": export,
    "queue peek": on_messages.peek,
    "queue pause": on_messages.pause,
    "queue resume": on_messages.pause,
    "message show": on_messages.show_message,
    "message trace": on_messages.trace_message,
    "schedule list": on_messages.list_scheduled,
    "schedule cancel": on_messages.cancel,
    "schedule now": on_messages.make_due,
    "pending list": on_messages.list_pending,
    "pending explain": on_messages.list_pending,
    "pending finish": on_messages.finish_pending,
    "blocked list": on_messages.list_blocked,
    "blocked unblock": on_messages.unblock,
    "dead-letters list": on_messages.list_dead_letters,
    "dead-letters show": on_messages.show_dead_letter,
    "dead-letters resubmit": on_messages.resubmit,
    "dead-letters discard": on_messages.discard,
    "dead-letters restore": on_messages.restore,
    "stream list": list_streams,
    "stream read": read_stream,
    "stream unregister": unregister_stream,
    "stream trim": trim_stream,
    "backup": folder_commands.backup,
    "restore": folder_commands.restore,
    "log inspect": log_command,
    "log compact": log_command,
    "log salvage": log_command,
    "audit": audit,
    "bench": bench,
}
