"""The command line."""

from outbox.ops.cli.parser import main

__all__ = ["main"]
