"""The commit protocols: how one attempt at a message, or at a batch of them, takes effect exactly once."""
