"""States: show, export, import, history."""
