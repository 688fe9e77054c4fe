"""Ask the operator of a folder, or of what lies on Azure, and print its answer."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import msgspec

from outbox.ops.arguments import looking, messages, states
from outbox.ops.requests import A, Admin, Request

Options = argparse.Namespace
T = TypeVar("T")

_TAKE_A_FOLDER = sorted(looking.ON_AZURE | states.ON_AZURE | messages.ON_AZURE)
_COMMAND = re.compile(rf"\boutbox (?:{'|'.join(map(re.escape, _TAKE_A_FOLDER))})\b(?! --data)")


class Usage(Exception):
    """Arguments that contradict each other."""


def ask(options: Options, asked: Request[A]) -> A:
    """The answer of the folder, of the application on Azure or of ordered logs there, by the options."""
    return talk(options, lambda admin: admin.ask(asked))


def talk(options: Options, work: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    """Connect an admin for what the options name, and ask it several things."""

    async def talked() -> T:
        async with connected(options) as admin:
            return await work(admin)

    return asyncio.run(talked())


def connected(options: Options) -> AbstractAsyncContextManager[Admin]:
    """The admin of the folder, of the application on Azure or of ordered logs there, by the options."""
    if options.data is not None:
        from outbox.ops.connect_folder import connect_admin

        return connect_admin(options.data, accept_clock=options.accept_clock)
    import logging

    from outbox.ops.connect_azure import Addresses, connect_azure_admin

    logging.getLogger("azure").addHandler(logging.NullHandler())  # its lines about connections are no answer
    names = ("cosmos", "servicebus", "database", "container", "states", "blobs", "blob_states")
    addresses = Addresses(**{name: getattr(options, name, "") for name in names})
    if not hasattr(options, "blob_states"):
        return connect_azure_admin(addresses)
    from outbox.ops.connect_azure import connect_stream_admin

    return connect_stream_admin(addresses)


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
