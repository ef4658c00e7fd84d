"""Bytes and key names as they are in Redis. No I/O."""
