"""Shared parts of the jobs: command lines, identities, rows and their ids, files that appear whole."""
