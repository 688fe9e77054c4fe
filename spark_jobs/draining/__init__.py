"""What `consume` does: messages to files on executors, and by the driver from there into a Delta table."""
