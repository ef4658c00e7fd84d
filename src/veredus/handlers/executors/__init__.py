"""Runs handlers in threads and processes."""
