"""Clients that mean harm: what they are told, and that nobody else notices them."""
