"""A row of an ordered log as a table; `outbox stream export` writes it."""
