"""The environment of peers that are frameworks: `build/bench-peers-venv`, apart from `.venv` and made when first asked.

Decides what is in it; how things are installed (uv where it can be had, else pip) is `tools/setup.py`'s, and so are
its log and its lock.  A stamp in the environment tells whether it is current.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools import setup

VENV = setup.ROOT / "build" / "bench-peers-venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".outbox-stamp"
REQUIREMENTS = (
    "dbos>=3.4,<4",  # 3.0 removed @DBOS.transaction; before 3.4 the datasource was not tried here
    "eventsourcing>=9.4.6,<9.5",  # 9.4 keeps one tracking row for each upstream application; 9.5 was not tried here
    "msgspec>=0.20,<1",
)


def ready() -> Path:
    """The interpreter of the environment, which is made or renewed where it must be.

    Raises `SetupFailed` where it cannot be made; `build/setup.log` tells why.
    """
    wanted = "\n".join((*REQUIREMENTS, sys.version))
    with setup.only_one():
        if not (PYTHON.exists() and STAMP.is_file() and STAMP.read_text() == wanted):
            STAMP.unlink(missing_ok=True)
            os.environ["XDG_CACHE_HOME"] = str(setup.usable_cache())
            make(setup.find_uv())
            STAMP.write_text(wanted)
    return PYTHON


def make(uv: str) -> None:
    """Make it with `uv`, or with pip where that is empty or cannot reach what pip can."""
    if uv:
        try:
            setup.step("making the peers' environment", [uv, "venv", "--clear", "--python", setup.BASE, str(VENV)])
            install([uv, "pip", "install", "--python", str(PYTHON)])
            return
        except setup.SetupFailed as failure:
            setup.say(f"{failure}; once more with pip alone")
    setup.step("making the peers' environment", [setup.BASE, "-m", "venv", "--clear", str(VENV)])
    install([str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"])


def install(installer: list[str]) -> None:
    setup.step(f"installing {', '.join(REQUIREMENTS)}", [*installer, *REQUIREMENTS])
