"""Groups and aggregation."""
