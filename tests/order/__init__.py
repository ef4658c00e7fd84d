"""Order per key."""
