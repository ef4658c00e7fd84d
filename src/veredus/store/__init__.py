"""The only room with a Redis connection."""
