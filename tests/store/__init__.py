"""The store against real servers."""
