"""The embedded engine: queues, documents and deduplication records over one write-ahead log."""
