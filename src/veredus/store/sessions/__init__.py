"""Sessions of gateway clients in Redis, and their outboxes."""
