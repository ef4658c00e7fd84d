"""The gateway: clients' connections, their numbered logs, their requests as tasks."""
