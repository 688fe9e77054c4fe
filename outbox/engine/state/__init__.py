"""The engine's memory: a pure function of the records of its log."""
