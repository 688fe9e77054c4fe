"""Runs that are started once: their documents, where these are, and the places that batches run on."""
