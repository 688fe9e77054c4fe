"""The decisions of a worker at its start: the plan of its sources, retention, registered handlers."""
