"""`FunctionsSettings` under its earlier name; new programs import it from `outbox.azure.functions`."""

from outbox.azure.functions.settings import FunctionsSettings

__all__ = ["FunctionsSettings"]
