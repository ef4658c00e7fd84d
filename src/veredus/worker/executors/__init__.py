"""Where handlers run when not on the event loop."""
