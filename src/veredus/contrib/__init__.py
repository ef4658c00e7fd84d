"""Integrations with web frameworks. Each is a separate module and is loaded only when imported."""
