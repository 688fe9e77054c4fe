"""Requests and their answers, one file a subject; a request is the verb."""
