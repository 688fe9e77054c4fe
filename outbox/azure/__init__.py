"""The runtime's ports on Azure: Cosmos DB for documents, Service Bus for messages, Blob Storage for large bodies."""
