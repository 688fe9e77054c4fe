"""What `reconcile` does: a cheap pass, what must hold, and the steps that are kept."""
