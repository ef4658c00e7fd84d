"""Enqueues one task after the other and writes down the ids that were accepted; goes on through every outage.

Whether a call that raised has stored its task is not known. It is sent again with the same id; if the first one was
stored and has run by then, it runs again. Such ids are written down as unsure.
"""

from __future__ import annotations

import os
import random
import sys
import time
import uuid
from pathlib import Path

from veredus import App
from veredus.errors import StoreError, TaskIdConflict

HERE = Path(__file__).parent


def main(url: str, number: str, rate: str) -> None:
    app, rng = App(url), random.Random(int(number))
    sent, unsure = [os.open(HERE / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT) for name in ("sent", "unsure")]
    while not (HERE / "enough").exists():
        task_id = str(uuid.uuid4())
        seconds = rng.uniform(1.0, 6.0) if rng.random() < 0.05 else rng.uniform(0.0, 0.1)
        while True:
            try:
                app.enqueue_sync("job", {"seconds": seconds}, task_id=task_id)
            except TaskIdConflict:
                pass  # the answer to an earlier try was lost
            except StoreError:
                os.write(unsure, f"{task_id}\n".encode())
                time.sleep(0.04)
                continue
            break
        os.write(sent, f"{task_id}\n".encode())
        time.sleep(rng.uniform(0.0, 2.0 / float(rate)))
    app.close_sync()


if __name__ == "__main__":
    main(*sys.argv[1:])
