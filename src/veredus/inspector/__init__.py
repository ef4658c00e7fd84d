"""Read, search, change, diagnose and repair the queues of a running system."""
