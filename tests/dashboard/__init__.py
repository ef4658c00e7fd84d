"""The dashboard: its API against a real server, the same as its page uses it."""
