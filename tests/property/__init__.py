"""Hypothesis state machines over real servers."""
