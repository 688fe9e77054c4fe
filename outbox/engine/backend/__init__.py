"""The engine behind the ports of the runtime."""
