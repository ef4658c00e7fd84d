"""Scheduling: each tick of a schedule enqueues one task, exactly once, whichever process leads."""
