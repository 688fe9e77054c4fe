"""python -m tools.local_azure: Cosmos DB, Service Bus, Blob Storage and Azure Functions here, the sample bank in them.

The emulators run in one process on a folder, each Functions host in another; what one of them does when another is
killed can be tried.  Everything is printed that a shell needs.  A development tool: nothing of it is part of the
product.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from function_app.bank import app as bank
from function_app.settings import connect
from outbox.azure.connecting import AzureBackend
from outbox.client import Client

ROOT = Path(__file__).resolve().parent.parent
START_WITHIN_S = 60.0
STOP_WITHIN_S = 20.0
HTTP_PORT = 7071


class NotStarted(Exception):
    """A part ended, or said nothing, before it was ready."""


@dataclass(slots=True)
class Part:
    """A process, and the lines that it printed when it was ready."""

    process: asyncio.subprocess.Process
    lines: list[str]

    async def stop(self) -> None:
        """Let it end, or end it."""
        if self.process.returncode is None:
            self.process.terminate()
            try:
                async with asyncio.timeout(STOP_WITHIN_S):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
                await self.process.wait()


async def start(stack: AsyncExitStack, arguments: list[str], environment: dict[str, str], *, lines: int) -> Part:
    """Start a part and wait for the lines that it prints when it is ready; it ends with the stack.

    Raises:
        NotStarted: it did not get that far.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *arguments),
        cwd=ROOT,
        env=os.environ | environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C would reach all at once; here they end one after the other
    )
    part = Part(process, [])
    stack.push_async_callback(part.stop)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_WITHIN_S):
            while len(part.lines) < lines:
                line = (await process.stdout.readline()).decode().strip()
                if not line:
                    raise NotStarted(f"{arguments[0]} ended before it was ready; it said why above")
                part.lines.append(line)
    except TimeoutError:
        raise NotStarted(f"{arguments[0]} was not ready after {START_WITHIN_S:g} s") from None
    return part


async def serve(options: argparse.Namespace) -> None:
    """Start everything and serve until a signal comes or a part ends.

    Raises:
        NotStarted: a port is taken, or a part did not get ready, or ended.
    """
    check_ports(options)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        ports = ["--amqp-port", str(options.amqp_port), "--cosmos-port", str(options.cosmos_port)]
        ports += ["--blob-port", str(options.blob_port)]
        emulators = await start(stack, ["outbox", "emulator", "--data", str(options.data), *ports], {}, lines=3)
        settings = {
            "FUNCTIONS_WORKER_RUNTIME": "python",
            "OUTBOX_SERVICEBUS": emulators.lines[0],
            "OUTBOX_COSMOS": emulators.lines[1],
            "OUTBOX_BLOBS": emulators.lines[2],
            "AzureWebJobsStorage": emulators.lines[2],
            "OUTBOX_CREATE": "1",
        }
        await prepare(settings)
        parts, urls = [emulators], []
        for index in range(options.hosts):
            port = options.port + index if options.port else 0
            arguments = ["tools.local_functions", "--app", str(ROOT), "--port", str(port), "--worker", options.worker]
            parts.append(await start(stack, arguments, settings, lines=1))
            urls.append(parts[-1].lines[0].split()[0])
        tell(settings, urls)
        ended = [asyncio.ensure_future(part.process.wait()) for part in parts]
        stopped = asyncio.ensure_future(stopping.wait())
        await asyncio.wait([stopped, *ended], return_when=asyncio.FIRST_COMPLETED)
        for task in (stopped, *ended):
            task.cancel()
    if not stopping.is_set():
        raise NotStarted("a part ended by itself; everything was stopped")


def check_ports(options: argparse.Namespace) -> None:
    """Make sure that every port is free before anything starts.

    Raises:
        NotStarted: one is not; the text says how to take another.
    """
    wanted = [(options.amqp_port, "--amqp-port"), (options.cosmos_port, "--cosmos-port")]
    wanted += [(options.blob_port, "--blob-port")]
    if options.port:
        wanted += [(options.port + index, "--port") for index in range(options.hosts)]
    for port, option in wanted:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            cure = f'make azure ARGS="{option} 0" takes any free one'
            raise NotStarted(f"port {port} cannot be used ({why}); {cure}") from None


async def prepare(settings: dict[str, str]) -> None:
    """Make the database and the queues, which a deployment's templates do on Azure."""
    backend = connect(settings)
    assert isinstance(backend, AzureBackend)
    async with backend:
        await Client(bank, backend).declare()


def tell(settings: dict[str, str], urls: list[str]) -> None:
    """Print how to talk to all of it; the last line says that it is ready."""
    for name in ("OUTBOX_SERVICEBUS", "OUTBOX_COSMOS", "OUTBOX_BLOBS"):
        print(f"export {name}='{settings[name]}'")
    for number, account in enumerate(("alice", "bob"), start=1):
        body = f'{{"account": "{account}", "balance": 10000}}'
        shown = r"-w '%{http_code}\n'"  # the answer is 204, without a body
        print(f"curl {urls[0]}/accounts -H 'Idempotency-Key: open-{number}' --json '{body}' {shown}")
    transfer = '{"id": "t1", "source": "alice", "target": "bob", "amount": 500}'
    print(f"curl {urls[-1]}/transfers -H 'Idempotency-Key: t1' --json '{transfer}'")
    print(f"curl {urls[0]}/accounts/bob  # what is on its way to bob arrives a moment later")
    print(f"ready: {' '.join(urls)}", flush=True)


def make_parser() -> argparse.ArgumentParser:
    """The parser, whose defaults are the ports of the emulators and the first host."""
    parser = argparse.ArgumentParser(prog="python -m tools.local_azure", description=__doc__, allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=Path("azure.data"), metavar="FOLDER", help="what outlives it")
    parser.add_argument(
        "--port", type=int, default=HTTP_PORT, help=f"of the first Functions host ({HTTP_PORT}; 0: any)"
    )
    parser.add_argument("--hosts", type=int, default=1, help="how many Functions hosts, each on the next port (1)")
    parser.add_argument("--amqp-port", type=int, default=5672)
    parser.add_argument("--cosmos-port", type=int, default=8081)
    parser.add_argument("--blob-port", type=int, default=10_000)
    parser.add_argument("--worker", choices=("auto", "runtime", "library"), default="auto")
    return parser


def main() -> int:
    """Serve; the exit code."""
    options = make_parser().parse_args()
    options.data = options.data.resolve()
    try:
        asyncio.run(serve(options))
    except NotStarted as error:
        print(f"local_azure: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
