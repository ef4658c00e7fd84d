"""Handlers on the event loop, in threads and in processes: one table of what becomes of their tasks."""
