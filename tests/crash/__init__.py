"""Crash tests: real worker processes and servers that are killed, stopped and cut off."""
