"""Interop with Go's Asynq: against its golden data, beside the real one (`live`), and beside an emulated one where a
fault needs an exact place."""
