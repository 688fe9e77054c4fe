"""The command line: one parser of all commands, where they look, and the exit codes.

0 done, 1 refused (one line on stderr says why and what to do), 2 usage, 130 interrupted by Ctrl-C.  Built on argparse
and without slow imports, so that `outbox --help` prints at once; each subject has a table of its commands in
`command.py`: arguments, work and text.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NoReturn

from outbox.errors import OutboxError
from outbox.escape import printable
from outbox.ops.cli import checks, hosts, pipelines
from outbox.ops.cli.terminal import show_anything, without_secrets
from outbox.ops.dead_letters import command as dead_letters
from outbox.ops.folder import command as folder
from outbox.ops.messages import command as messages
from outbox.ops.messages import status as looking
from outbox.ops.play import command as play
from outbox.ops.shared.asking import ANSWER, AZURE_OPTIONS, Commands, data
from outbox.ops.states import command as states
from outbox.ops.streams import command as streams
from outbox.ops.streams.command import BLOB_STATES, BLOB_STATES_HELP
from outbox.ops.trail import command as trail
from outbox.ops.values.requests import Admin
from outbox.runtime.failures.redacting import redacted

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130
DISTRIBUTION = "outbox-azure"
"""The distribution's name; on PyPI `outbox` is another project."""

ORDER = (
    *("new", "play", "run", "emulator", "completion", "describe"),
    *("send", "status", "metrics", "doctor", "export"),
    *("state", "queue", "message", "schedule", "pending", "blocked", "dead-letters", "stream", "pipeline"),
    *("backup", "restore", "log", "audit", "bench"),
)
_FOUND: Commands = {
    **hosts.COMMANDS,
    **play.COMMANDS,
    **messages.COMMANDS,
    **looking.COMMANDS,
    **trail.COMMANDS,
    **states.COMMANDS,
    **dead_letters.COMMANDS,
    **streams.COMMANDS,
    **pipelines.COMMANDS,
    **folder.COMMANDS,
    **checks.COMMANDS,
}
COMMANDS: Commands = {name: _FOUND[name] for name in sorted(_FOUND, key=lambda name: ORDER.index(name.split()[0]))}
"""All commands, in the order of `outbox --help`."""

ON_AZURE = frozenset(name for name, command in COMMANDS.items() if command.at == "azure")
"""The commands that take a folder or an application on Azure."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    show_anything()
    options = make_parser().parse_args(arguments)
    if hasattr(options, "data") and hasattr(options, "cosmos"):
        _place(options)
    elif getattr(options, "azure", False):
        _read_environment(options)
    from outbox.ops.shared import asking

    try:
        options.work(options)
        sys.stdout.flush()
    except asking.Usage as error:
        options.parser.error(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at exit
        return REFUSED
    except OutboxError as error:
        return _refuse(asking.with_folder(options, str(error)))
    except OSError as error:
        named = f"{error.filename}: {error.strerror}; look at this path" if error.filename else str(error)
        return _refuse(asking.with_folder(options, named))
    except LookupError as error:
        if type(error) is not LookupError:
            raise
        return _refuse(asking.with_folder(options, str(error)))
    except KeyboardInterrupt:
        return INTERRUPTED
    return DONE


def _refuse(text: str) -> int:
    print(f"outbox: {printable(without_secrets(' '.join(text.split())))}", file=sys.stderr)
    return REFUSED


def _place(options: argparse.Namespace) -> None:
    """Decide where a command looks: in a folder, or on Azure by options or the environment.

    The environment is read only without a folder, so that a variable left in a shell redirects no command.
    """
    named = [name for name in (*AZURE_OPTIONS, "blob_states") if getattr(options, name, "")]
    if options.data is not None:
        if named:
            options.parser.error(f"--data and --{named[0].replace('_', '-')} name two places; keep one")
        return
    if hasattr(options, "blob_states"):
        _place_streams(options)
        return
    _read_environment(options)
    missing = [name for name in ("cosmos", "servicebus") if not getattr(options, name)]
    if len(missing) == 2:
        options.parser.error("say where to look: --data FOLDER, or --cosmos ADDRESS --servicebus ADDRESS")
    if missing:
        variable = AZURE_OPTIONS[missing[0]][0][0]
        options.parser.error(f"--{missing[0]} is missing; give it, or set {variable}")


def _place_streams(options: argparse.Namespace) -> None:
    """Decide where a command for ordered logs looks: in Cosmos DB, or in a container of blobs.

    Cosmos DB, if it is named, by the environment too, unless --blob-states says otherwise; else the blobs.
    """
    if options.cosmos and options.blob_states:
        options.parser.error("--cosmos and --blob-states name two places; keep one")
    _read_environment(options)
    if options.blob_states and not options.blobs:
        options.parser.error("--blobs is missing: the account with the container of --blob-states; or set OUTBOX_BLOBS")
    if not options.cosmos and not options.blobs:
        options.parser.error("say where to look: --data FOLDER, --cosmos ADDRESS, or --blobs ADDRESS")
    if not options.cosmos:
        options.blob_states = options.blob_states or BLOB_STATES


def _read_environment(options: argparse.Namespace) -> None:
    """Take what the options do not say of an application on Azure from the environment."""
    for name, (variables, default, _) in AZURE_OPTIONS.items():
        if hasattr(options, name):
            found = next((os.environ[variable] for variable in variables if os.environ.get(variable)), default)
            setattr(options, name, getattr(options, name) or found)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors hide secrets and suggest close names; it may add an omitted verb."""

    verb_left_out = ""
    """Of a group of commands: the verb that is meant where none of its verbs is given."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, with the verb that was left out."""
        given = [] if args is None else list(args)
        if self.verb_left_out and given and given[0] not in (*self._verbs(), "-h", "--help"):
            args = [self.verb_left_out, *given]
        return super().parse_known_args(args, namespace)

    def _verbs(self) -> list[str]:
        return [verb for action in self._actions for verb in action.choices or ()]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a command, verb or other choice; argparse calls this, and its error lists the choices."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            from outbox.ops.shared.names import meant

            error.message += meant(str(value), [str(choice) for choice in action.choices or ()])
            raise

    def error(self, message: str) -> NoReturn:
        super().error(redacted(message))


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="outbox",
        description="Message handlers that act exactly once: run them, feed them, look after them.",
        epilog="Exit code 0: done, 1: refused, 2: usage.  `outbox COMMAND --help` tells more.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version, and leave")
    parser.set_defaults(whole=parser, connect=connect, taking=ON_AZURE)
    groups = {"": parser.add_subparsers(dest="command", metavar="COMMAND", required=True)}
    for name, known in COMMANDS.items():
        group, _, verb = name.rpartition(" ")
        command = groups[group].add_parser(verb, help=known.help, description=known.help, allow_abbrev=False)
        command.set_defaults(action=name, parser=command, work=known.work)
        if known.arguments is None:
            command.verb_left_out = known.left_out
            groups[name] = command.add_subparsers(dest="verb", metavar="VERB", required=True)
        for names, how in known.arguments or ():
            command.add_argument(*names, **_once(*names), **how)
        if known.key_kind:
            _add_key_kind(command)
        if known.at:
            place = _add_place(command)
        if known.at == "streams":
            place.add_argument("--blob-states", action=_Place, metavar="NAME", default="", help=BLOB_STATES_HELP)
    return parser


class _Version(argparse.Action):
    """Print the installed version.  Looked up only when it is asked for: that reads what is installed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version(DISTRIBUTION)
        except PackageNotFoundError:
            found = f"of a folder, not installed ({Path(__file__).resolve().parents[3]})"
        print(f"outbox {found}")
        parser.exit()


def _add_key_kind(parser: argparse.ArgumentParser) -> None:
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--int", dest="kind", action="store_const", const="int", help="the key is an integer")
    kind.add_argument("--uuid", dest="kind", action="store_const", const="uuid", help="the key is a UUID")
    parser.set_defaults(kind="text")


def _add_place(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Let a command look in a folder or on Azure."""
    for names, how in (data(required=False), *ANSWER):
        parser.add_argument(*names, **_once(*names), **how)
    azure = parser.add_argument_group(
        "on Azure, or on emulators",
        "in place of --data; plain addresses are used with your identity (DefaultAzureCredential)",
    )
    for name, (variables, default, text) in AZURE_OPTIONS.items():
        known = f" ({default})" if default else ""
        metavar = "ADDRESS" if name in ("cosmos", "servicebus", "blobs") else "NAME"
        text = f"{text}{known}; or {variables[0]}"
        azure.add_argument(f"--{name}", action=_Place, metavar=metavar, default="", help=text)
    return azure


def _once(*names: str) -> dict[str, Any]:
    return {"action": _Place} if names == ("--data",) else {}


class _Place(argparse.Action):
    """Take where a command looks; of two values the last would decide in silence which data it changes."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        if getattr(options, self.dest, None) not in (self.default, value):
            parser.error(f"{option} stands twice, with two values; keep one")
        setattr(options, self.dest, value)


def connect(options: argparse.Namespace) -> AbstractAsyncContextManager[Admin]:
    """The admin of the folder, of the application on Azure or of ordered logs there, by the options."""
    if options.data is not None:
        from outbox.ops.admins.folder import connect_admin

        return connect_admin(options.data, accept_clock=options.accept_clock)
    from outbox.ops.admins import azure

    connected = azure.connect_stream_admin if hasattr(options, "blob_states") else azure.connect_azure_admin
    return connected(azure.addresses_of(options))
