"""python -m tools.local_functions --app . --port 7071: run a Functions app on this machine."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from contextlib import AsyncExitStack

from outbox.azure import functions
from tools.local_functions.host import FunctionsHost, HostFailed
from tools.local_functions.workers import IndexingFailed

PORT = 7071
OPEN_WITHIN_S = 10.0
CLOSE_WITHIN_S = 10.0

log = logging.getLogger("local_functions")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.local_functions", description=__doc__, allow_abbrev=False)
    parser.add_argument("--app", default=".", metavar="FOLDER", help="where host.json is (.)")
    parser.add_argument("--port", type=int, default=PORT, help=f"port of HTTP functions ({PORT}; 0: any free one)")
    parser.add_argument(
        "--worker", choices=("auto", "runtime", "library"), default="auto", help="what runs the functions"
    )
    parser.add_argument("--verbose", action="store_true", help="show tracebacks of functions that fail")
    options = parser.parse_args()
    level = logging.DEBUG if options.verbose else logging.INFO
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for name in ("local_functions", "outbox"):
        logging.getLogger(name).setLevel(level)
    try:
        asyncio.run(serve(options))
    except (IndexingFailed, HostFailed, ValueError, OSError) as error:
        print(f"local_functions: {error}", file=sys.stderr)
        return 1
    return 0


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(close_apps)  # last of all: triggers end before what they use
        made = FunctionsHost(options.app, worker=options.worker, port=options.port, prepare=open_apps)
        host = await stack.enter_async_context(made)
        for name, function in host.functions.items():
            print(f"  {name}: {function.trigger['type']}", file=sys.stderr)
        if not host.functions and not host.left_out:
            print("  no functions: is function_app.py there?  Azure would not complain either", file=sys.stderr)
        print(f"http://127.0.0.1:{host.port} ({host.worker.name})", flush=True)
        failed = asyncio.ensure_future(host.wait_failed())
        stopped = asyncio.ensure_future(stopping.wait())
        done, rest = await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        if failed in done:
            failed.result()


# The applications in this process: opened before the first message, closed at the end.  Azure's host knows nothing of
# them: there the first invocation opens what it needs, and the process just ends.  Here queues are made by whoever
# connects (OUTBOX_CREATE), so triggers would look for some that nobody has made yet; and clients that are left open are
# complained of when the process ends.


async def open_apps() -> None:
    """Open every application that the indexed functions have registered, as far as its backend can be reached."""
    for app in functions.registered():
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                await functions.processor_of(app)
        except Exception as error:  # whatever it is, the first message meets it again and says so
            why = str(error)[:200] or f"no answer within {OPEN_WITHIN_S:g} s"
            log.warning(
                "%s cannot be opened yet (%s: %s); the first message tries again", app.name, type(error).__name__, why
            )


async def close_apps() -> None:
    """Let what goes on behind messages end, and close every client of this process."""
    for app in functions.registered():
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await functions.close(app)
        except Exception as error:  # the process ends anyway
            log.warning("%s was not closed: %s: %s", app.name, type(error).__name__, str(error)[:200])


if __name__ == "__main__":
    sys.exit(main())
