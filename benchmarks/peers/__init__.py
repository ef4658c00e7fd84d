"""The same job for other queues, each in an environment of its own."""
