"""What checks the promises: contract suites for adapters and ports that fail on purpose."""
