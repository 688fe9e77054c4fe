"""The parts of `reconcile`: a cheap pass, the expectations, and the steps that are kept."""
