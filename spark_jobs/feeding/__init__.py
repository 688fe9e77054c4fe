"""The parts of `feed`: its plan, written once, and the sending on executors."""
