"""The parts of a commit: running a handler, transactions, reads and writes, marks, sweeps."""
