"""Interop with Go's Asynq: against its golden data, and beside an emulated Go peer."""
