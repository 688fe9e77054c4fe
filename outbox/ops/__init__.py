"""The command line, and the control endpoint of a running host."""
