"""Finds handlers, injects their dependencies, and runs them on the event loop, in a thread or in a process."""
