"""Blob Storage on the embedded engine, for development and tests: containers, block blobs, leases, tags over HTTP."""
