"""Ask the operator of a folder, or of what lies on Azure, and print its answer."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from outbox.ops.arguments import looking, messages, states

Options = argparse.Namespace

_TAKE_A_FOLDER = sorted(looking.ON_AZURE | states.ON_AZURE | messages.ON_AZURE)
_COMMAND = re.compile(rf"\boutbox (?:{'|'.join(map(re.escape, _TAKE_A_FOLDER))})\b(?! --data)")


class Usage(Exception):
    """Arguments that contradict each other."""


def ask(options: Options, question: Callable[[Any], Awaitable[Any]]) -> Any:
    """Connect an operator for the folder, for the application on Azure or for ordered logs there, and ask it."""

    async def asked() -> Any:
        async with connected(options) as operator:
            return await question(operator)

    return asyncio.run(asked())


def connected(options: Options) -> AbstractAsyncContextManager[Any]:
    """The operator of the folder, of the application on Azure or of ordered logs there, by the options."""
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


def answer(options: Options, value: Any, line: str) -> None:
    """Print an answer: JSON where asked for, else its text."""
    print(msgspec.json.encode(value).decode() if options.json else line)


def with_folder(options: Options, text: str) -> str:
    """A text whose commands name the folder that was asked, so that they run as they are pasted.

    The option stands before the arguments, because where those end the text does not say.  On Azure nothing is added:
    an address may be a connection string.
    """
    folder = getattr(options, "data", None)
    if folder is None:
        return text
    option = f"--data {shlex.quote(str(folder))}"
    return _COMMAND.sub(lambda found: f"{found[0]} {option}", text).replace("--data FOLDER", option)


def and_whether_hosted(options: Options, shown: str) -> str:
    """A text, and a line below it where no process has the folder, so that nothing in it is handled."""
    from outbox.ops.control_file import is_held

    if options.data is None or is_held(options.data):
        return shown
    run = f"`outbox run APP --data {shlex.quote(str(options.data))}`"
    return f"{shown}\nno host runs on this folder: nothing is handled until {run} does"
