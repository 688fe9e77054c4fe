"""The parts of `consume`: messages to files on executors, and by the driver into a Delta table."""
