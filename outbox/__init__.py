"""Message handlers that act exactly once."""
