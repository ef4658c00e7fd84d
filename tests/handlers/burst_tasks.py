"""Tasks of a burst: plain def handlers and CPU handlers in one queue, with the defaults of a worker."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from veredus import App, current

app = App()


def _note(kind: str, began: float) -> None:
    """One line per run, appended in one write."""
    line = json.dumps({"kind": kind, "worker": os.getppid(), "pid": os.getpid(), "at": began, "id": current().id})
    with Path(os.environ["BURST_FILE"]).open("a") as file:
        file.write(line + "\n")


@app.task(run_in="process", name="cpu", queue="mixed", max_retry=0)
def cpu(seconds: float) -> None:
    """The guard stands between the worker and this process, so that its parent is not the worker itself."""
    _note("cpu", time.time())
    time.sleep(seconds)


@app.task(name="plain", queue="mixed", max_retry=0)
def plain(seconds: float) -> None:
    _note("plain", time.time())
    time.sleep(seconds)
