"""Enqueues one task after the other and writes down the ids that were accepted; goes on through every outage.

Its patience is longer than any outage, so a call that raises was refused: its task is not stored, and is sent again.
"""

from __future__ import annotations

import os
import random
import sys
import time
import uuid
from pathlib import Path

from veredus import App
from veredus.errors import ConnectionLost, StoreError

HERE = Path(__file__).parent


def main(url: str, number: str, rate: str) -> None:
    app, rng = App(url, patience=90), random.Random(int(number))
    sent = os.open(HERE / "sent", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while not (HERE / "enough").exists():
        task_id = str(uuid.uuid4())
        seconds = rng.uniform(1.0, 6.0) if rng.random() < 0.05 else rng.uniform(0.0, 0.1)
        while True:
            try:
                app.enqueue_sync("job", {"seconds": seconds}, task_id=task_id)
            except ConnectionLost:
                raise  # the patience is over
            except StoreError:
                time.sleep(0.04)
                continue
            break
        os.write(sent, f"{task_id}\n".encode())
        time.sleep(rng.uniform(0.0, 2.0 / float(rate)))
    app.close_sync()


if __name__ == "__main__":
    main(*sys.argv[1:])
