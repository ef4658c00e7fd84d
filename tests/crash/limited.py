"""The app whose tasks have limits, run by itself: it writes down when tasks are handed out and when they run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from veredus import App, Limit, current
from veredus.cli.logs import configure
from veredus.errors import StoreError
from veredus.store.tasks.work import Batch, DequeueRequest, Work

app = App()
FACTS = os.open(Path(__file__).parent / "facts", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(what: str, task_id: str, at: float, key: str = "") -> None:
    fact = {"what": what, "id": task_id, "key": key, "pid": os.getpid(), "at": at}
    os.write(FACTS, json.dumps(fact).encode() + b"\n")


@app.task(name="limited", retry_delay=0.1, limit=[Limit(rate="100/s"), Limit(concurrency=5, per="key")])
async def limited(key: str, seconds: float) -> None:
    note("start", current().id, time.time(), key)
    await asyncio.sleep(seconds)
    note("finish", current().id, time.time(), key)


class Noted(Work):
    """Says what Redis's clock read when it handed out each task."""

    async def dequeue_each(self, asks: Sequence[DequeueRequest]) -> list[Batch | StoreError]:
        answers = await super().dequeue_each(asks)
        for batch in answers:
            if isinstance(batch, Batch):
                for task_id, _ in batch.rows:
                    note("dequeue", task_id, batch.now_ms / 1000)
        return answers


def main(url: str, settings: dict[str, Any]) -> int:
    from veredus.worker import execution

    configure("info", "text")
    execution.Work = Noted  # type: ignore[attr-defined]
    app.use(url)
    return int(app.worker(**settings).run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
