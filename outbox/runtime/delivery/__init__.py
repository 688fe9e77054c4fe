"""Deliveries on their way in and out: admission, lanes, settlement, blocked sessions, retries."""
