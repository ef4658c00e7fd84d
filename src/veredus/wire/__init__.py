"""Bytes and key names as they stand in Redis. No I/O."""
