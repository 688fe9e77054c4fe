"""The former name of `outbox.verify.recorded.recording`."""

from outbox.verify.recorded.recording import recorded

__all__ = ["recorded"]
