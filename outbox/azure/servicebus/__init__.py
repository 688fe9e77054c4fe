"""Service Bus as a message bus."""
