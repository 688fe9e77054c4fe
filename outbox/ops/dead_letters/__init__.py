"""Dead letters and the keys that they block."""
