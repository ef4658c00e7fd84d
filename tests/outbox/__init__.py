"""The log of the gateway: scripts and their Python side, against real servers."""
