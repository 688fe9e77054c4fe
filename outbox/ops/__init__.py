"""What an operator uses: the command line and the control endpoint of a running host."""
