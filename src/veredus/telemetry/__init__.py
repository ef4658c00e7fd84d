"""Telemetry: metrics, traces, errors and logs. Listens to what the rooms below announce; loaded only when used."""
