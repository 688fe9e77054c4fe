"""The log: what is on the disk, and what an open makes of it."""
