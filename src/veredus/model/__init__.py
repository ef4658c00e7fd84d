"""Values and rules: no I/O, no asyncio, standard library only; time comes in as an argument."""
