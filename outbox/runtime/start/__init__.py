"""What is decided once, when a worker starts: where each message goes, for how long it is remembered."""
