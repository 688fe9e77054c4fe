"""Spark at both ends of the queues: `feed` fills one, `consume` drains one, `reconcile` proves the whole.

The modules of this folder are programs, and what they give to programs of your own (`transforms`, `ledger`, `session`);
behind each stands a room of the same trade: `feeding`, `draining`, `comparing`, `submitting`.
"""
