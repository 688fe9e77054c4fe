"""Failures: their texts for logs and dead letters, their log lines, and their counts."""
