"""What a worker decides once, at its start: the plan of its sources, retention, registered handlers."""
