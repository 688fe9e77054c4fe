"""Commands as a user types them, run in this process, which starts faster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from unittest import mock

from outbox.ops.cli.parser import main


def typed(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[int | str | None, str, str]:
    """Run a command where of `OUTBOX_...` only these are set; its exit code, and what it said on stdout and stderr."""
    out, err = TextIOWrapper(BytesIO(), write_through=True), StringIO()
    known = {name: text for name, text in os.environ.items() if not name.startswith("OUTBOX_")}
    with (
        mock.patch.dict(os.environ, known | dict(environment or {}), clear=True),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            code: int | str | None = main(arguments)
        except SystemExit as ended:
            code = ended.code
    return code, out.buffer.getvalue().decode(), err.getvalue()


async def typed_beside(arguments: Sequence[str], environment: Mapping[str, str], *, code: int = 0) -> tuple[str, str]:
    """Run a command, which has a loop of its own; what it said on stdout and stderr."""
    found, out, err = await asyncio.to_thread(typed, arguments, environment)
    assert found == code, err
    return out, err
