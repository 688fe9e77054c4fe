"""The commands that judge a history, or measure."""

from __future__ import annotations

from pathlib import Path

from outbox.errors import Refused
from outbox.ops.shared.asking import JSON, Command, Commands, Options, Usage, argument, count


def audit(options: Options) -> None:
    """Print the verdict over a history.

    Raises:
        Refused: a promise does not hold.
    """
    from outbox.ops.host.audit import as_json, judge

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


COMMANDS: Commands = {
    "audit": Command(
        "Judge a history that `run --history` recorded: which promises hold, and the first event that breaks one.",
        (
            argument("history", metavar="FILE", type=Path),
            argument("--alone", action="store_true", help="no other client takes messages from the app's queues"),
            JSON,
        ),
        audit,
    ),
    "bench": Command(
        "Measure this machine, beside hand-written SQLite; or with --azure an account of Cosmos DB and a namespace.",
        (
            argument("--messages", type=count, metavar="N", help="for each measurement (5000; with --azure 300)"),
            argument("--repeats", type=count, default=1, metavar="N"),
            argument("--azure", action="store_true", help="measure there, with a database and queues of its own"),
            argument(
                "--cosmos", metavar="CONNECTION", default="", help="Cosmos DB's connection string; or OUTBOX_COSMOS"
            ),
            argument("--servicebus", metavar="CONNECTION", default="", help="the namespace's; or OUTBOX_SERVICEBUS"),
            argument(
                "--ru-max",
                type=count,
                default=250_000,
                metavar="N",
                help="how many request units to spend at most (250000)",
            ),
            argument(
                "--output",
                type=Path,
                metavar="FOLDER",
                help="with --azure: also write azure-account.json and .txt there",
            ),
        ),
        bench,
    ),
}
