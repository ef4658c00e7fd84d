"""Schedules: when they fire, that each tick fires once, and what others see of them."""
