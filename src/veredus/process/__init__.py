"""Shared by worker and gateway processes: the supervisor, signals, forks, restarts, the outage log, hard exit."""
