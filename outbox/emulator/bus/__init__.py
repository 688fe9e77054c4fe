"""What a Service Bus does behind its AMQP side: nodes, senders, receivers, sessions, management."""
