"""What the scopes commit with: running a handler, transactions, reads and writes, what is left to finish."""
