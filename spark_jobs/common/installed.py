"""Packages that a job needs besides this one, and an error in words where one is not installed.

A job imports Spark when it is imported itself, so this must be asked first, and it imports nothing of that kind.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

PACKAGES = {"pyspark": "pyspark", "azure.servicebus": "azure-servicebus", "deltalake": "deltalake"}
"""The package that installs each module."""


def check_installed(job: str, *modules: str) -> None:
    """End the process with exit code 1 where a job cannot run for want of a package."""
    for module in modules:
        if not is_there(module):
            cure = "pip install 'outbox-azure[spark]' brings what Spark jobs need"
            print(f"{job}: {PACKAGES[module]} is not installed; {cure}", file=sys.stderr)
            sys.exit(1)


def is_there(module: str) -> bool:
    """Whether a module would be found; it is not imported, which takes half a second for some."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # what it is a part of is not there either
        return False
