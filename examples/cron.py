"""A task on a clock: two schedulers run, each tick is enqueued exactly once.

No server needed: `python examples/cron.py`.
"""

import asyncio
import itertools
from datetime import UTC, datetime

from veredus import App, current

app = App()
ticks: list[int] = []


@app.cron("@every 1s", name="tick", queue="clock", missed="skip")  # ticks of an earlier run are not caught up
async def tick() -> None:
    second = int(current().id.rpartition(":")[2])  # which tick this is: the id of the task says so
    ticks.append(second)


@app.cron("0 9 * * mon-fri", tz="Europe/Paris", name="report", queue="clock")
async def report() -> None:
    print("nine in Paris:", datetime.now(UTC))


async def main() -> None:
    async with app, app.worker(queues="clock"), app.worker(queues="clock"):
        while len(ticks) < 3:
            await asyncio.sleep(0.05)
    seen = sorted(ticks)[:3]
    print("one second apart:", [later - earlier for earlier, later in itertools.pairwise(seen)])
    print("each once:", len(set(ticks)) == len(ticks))


if __name__ == "__main__":
    asyncio.run(main())
