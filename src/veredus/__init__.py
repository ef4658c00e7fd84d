"""Veredus."""
