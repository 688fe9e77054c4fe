"""What `consume` does: messages to files on executors, and the log of what is in the ledger."""
