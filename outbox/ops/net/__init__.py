"""HTTP on loopback: guards, entries, metrics."""
