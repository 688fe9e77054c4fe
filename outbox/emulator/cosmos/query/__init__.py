"""Queries in SQL: parsed, compiled, and run over rows."""
