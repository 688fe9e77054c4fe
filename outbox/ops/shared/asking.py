"""Ask the admin of a folder, or of what lies on Azure, and print its answer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

import msgspec

from outbox.ops.shared.arguments import Options
from outbox.ops.values.requests import A, Admin, Request

T = TypeVar("T")


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

    import asyncio  # here, because the help of the command line needs none

    return asyncio.run(talked())


def connected(options: Options) -> AbstractAsyncContextManager[Admin]:
    """The admin of what the options name."""
    return cast(AbstractAsyncContextManager[Admin], options.connect(options))


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
    taking = re.compile(rf"\boutbox (?:{'|'.join(map(re.escape, sorted(options.taking)))})\b(?! --data)")
    return taking.sub(lambda found: f"{found[0]} {option}", text).replace("--data FOLDER", option)


def and_whether_hosted(options: Options, shown: str) -> str:
    """A text, and a line below it where no process has the folder, so that nothing in it is handled."""
    from outbox.ops.shared.control_file import is_held

    if options.data is None or is_held(options.data):
        return shown
    run = f"`outbox run APP --data {shlex.quote(str(options.data))}`"
    return f"{shown}\nno host runs on this folder: nothing is handled until {run} does"


def check_app_name(name: str, what: str = "APP", example: str = "bank:app") -> None:
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise Usage(f"{what} {name!r} is not of the form module:attribute, as in {example}")
