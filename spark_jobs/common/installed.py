"""What a job needs besides this package, said in words where it is not installed.

A job imports Spark when it is imported itself, so this must be asked first, and it imports nothing of that kind.
"""

from __future__ import annotations

import sys
from importlib import import_module

PACKAGES = {"pyspark": "pyspark", "azure.servicebus": "azure-servicebus", "deltalake": "deltalake"}
"""What each module is installed by."""


def check_installed(job: str, *modules: str) -> None:
    """End the process with exit code 1 where a job cannot run for want of a package."""
    for module in modules:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not (module + ".").startswith(error.name + "."):
                raise  # it is there, and what it needs itself is not
            cure = "pip install 'outbox-azure[spark]' brings what Spark jobs need"
            print(f"{job}: {PACKAGES[module]} is not installed; {cure}", file=sys.stderr)
            sys.exit(1)
