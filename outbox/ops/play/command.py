"""The command that serves the playground."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from outbox.ops.shared.asking import Command, Commands, Options, argument, port


def play(options: Options) -> None:
    """Serve the playground until Ctrl-C, and open a browser where there is a display."""
    import asyncio

    with suppress(KeyboardInterrupt):  # the ordinary end
        asyncio.run(_serve(options.port, opens_browser=not options.no_browser and has_display()))


async def _serve(port: int, *, opens_browser: bool) -> None:
    import asyncio
    import logging
    import webbrowser

    from outbox.ops.host.endpoints import port_refused
    from outbox.ops.play.server import serve_play

    try:
        async with serve_play(port) as address:
            logging.getLogger("outbox").setLevel(logging.CRITICAL)  # why a killed worker stopped is on the page
            print(address, flush=True)
            if opens_browser:
                await asyncio.to_thread(webbrowser.open, address)
            await asyncio.Event().wait()
    except OSError as error:
        raise port_refused(error, port, "--port") from error


def has_display() -> bool:
    """Whether a browser could show itself here; a text browser would take the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


COMMANDS: Commands = {
    "play": Command(
        "Play with crashes in a browser: real workers, killed at the step that you choose.",
        (
            argument("--port", type=port, default=0, metavar="PORT", help="port of the page, on loopback (0: any)"),
            argument("--no-browser", action="store_true", help="only print the address"),
        ),
        play,
    ),
}
