"""Producers: everything that puts tasks into Redis."""
