"""Monitors of an exploration: the promises, compared with every write, send and settlement."""
