"""A Service Bus behind its AMQP side: nodes, senders, receivers, sessions, management."""
