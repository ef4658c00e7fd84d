"""A task that runs in a process of its own: a child must be able to import it."""

from __future__ import annotations

from veredus import App, current

app = App("redis://127.0.0.1:1")  # the test points it at its own server


@app.task(run_in="process", max_retry=0)
def order() -> None:
    current().sleep_sync("nap", 1)
