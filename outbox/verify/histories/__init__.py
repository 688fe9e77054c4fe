"""The former name of `outbox.verify.recorded`, for programs that import from it."""
