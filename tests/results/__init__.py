"""Results, progress, cancelling and pausing."""
