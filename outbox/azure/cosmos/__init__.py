"""Cosmos DB as a state store."""
