"""The admins, which answer requests: of an engine, a store with a bus, a running host."""
