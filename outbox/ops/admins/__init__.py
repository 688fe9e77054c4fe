"""Who answers requests: an engine, a store with a bus, a running host."""
