"""Reading and changing tasks and queues by hand."""
