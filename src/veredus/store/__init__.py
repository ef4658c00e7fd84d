"""The only package with a Redis connection."""
