"""The contract suites, one for each port."""
