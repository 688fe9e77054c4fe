"""The former name of `outbox.verify.recorded.rerun`."""

from outbox.verify.recorded.rerun import rerun

__all__ = ["rerun"]
