"""Programs that work on the project itself; nothing of it is installed."""
