"""Cosmos DB as the SDK sees it: REST over HTTP, on the embedded engine; for development and tests."""
