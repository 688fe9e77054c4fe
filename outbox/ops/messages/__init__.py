"""Messages: send, find, schedule, pause; what queues hold, and what has not left."""
