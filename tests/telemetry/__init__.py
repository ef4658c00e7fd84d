"""Metrics, traces, errors, logs: with the real libraries."""
