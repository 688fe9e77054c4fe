"""Failures as texts: what may be logged and stored of them, and how often a message has failed."""
