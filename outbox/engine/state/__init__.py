"""What the engine remembers: a pure function of the records of its log."""
