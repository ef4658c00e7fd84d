"""Integrations with frameworks: each is a module of its own, and none is loaded unless it is imported."""
