"""Ordered logs and registers."""
