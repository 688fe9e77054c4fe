"""States: show, list, export, import, history."""
