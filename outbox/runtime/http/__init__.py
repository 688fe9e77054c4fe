"""HTTP requests as messages: reading them, attempting them, responding."""
