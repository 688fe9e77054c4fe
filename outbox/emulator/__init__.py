"""Wire protocols of Azure services on the embedded engine, for development and tests."""
