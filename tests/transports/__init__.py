"""Real sockets."""
