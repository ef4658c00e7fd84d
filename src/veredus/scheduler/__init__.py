"""Producers on a clock: each tick of a schedule becomes a task, exactly once, whichever process fires it."""
