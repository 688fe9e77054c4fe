"""The log on the disk, and its recovery at an open."""
