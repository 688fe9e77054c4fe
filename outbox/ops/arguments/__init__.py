"""What the command line takes: a table for each group of commands, and the values of its arguments."""
