"""What `feed` does: its plan, written once, and the sending on executors."""
