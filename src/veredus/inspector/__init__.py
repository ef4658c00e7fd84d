"""Looking into a running system, changing what waits in it, and mending what was damaged."""
