"""The app of the crash tests, copied into a folder of its own: members, an aggregator, and summaries that are noted."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from veredus import App, Call, Job
from veredus.cli.logs import configure

HERE = Path(__file__).parent
FACTS = os.open(HERE / "facts", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
app = App()


@app.task(name="summary")
async def summary(members: list[int]) -> None:
    os.write(FACTS, " ".join(map(str, members)).encode() + b"\n")


@app.aggregate("g*", grace=1, max_size=4)
async def digest(group: str, jobs: list[Job]) -> Call[Any]:
    return summary.call([job.json() for job in jobs])


def main(url: str, point: str, when: str) -> int:
    """A worker that dies at this method of the store's groups, before it is called or after it answered."""
    from veredus.store.tasks.groups import Groups
    from veredus.worker.roles import aggregator

    configure("info", "text")
    aggregator.SET_SECONDS = 2.0
    if point:
        real = getattr(Groups, point)

        async def deadly(self: Groups, *args: Any, **kwargs: Any) -> Any:
            if when == "before":
                os.kill(os.getpid(), 9)
            reply = await real(self, *args, **kwargs)
            # A check that staged nothing was not the one meant.
            if point != "check" or any(one.code == 1 for row in reply for one in row):
                os.kill(os.getpid(), 9)
            return reply

        setattr(Groups, point, deadly)
    app.use(url)
    return app.worker(concurrency=4, lease=2.0, sweep=0.5).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
