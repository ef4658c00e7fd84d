"""Consumers of tasks."""
