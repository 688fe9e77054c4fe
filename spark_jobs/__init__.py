"""Spark at both ends of the queues: `feed` fills one, `consume` drains one, `reconcile` proves the whole."""
