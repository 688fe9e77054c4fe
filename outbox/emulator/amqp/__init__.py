"""AMQP 1.0 without I/O: types, frames, the state of connections, sessions and links, and the message sections."""
