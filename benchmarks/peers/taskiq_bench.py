"""taskiq on a Redis stream: a hundred tasks at once, acknowledged after execution."""

import asyncio
import os
import sys

from stamps import COUNT, PAYLOAD, URL, mode, tick
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(url=URL)


@broker.task(task_name="noop")
async def noop(data: str) -> None:
    tick()


async def fill():
    await broker.startup()
    for _ in range(0, COUNT, 50):
        await asyncio.gather(*[noop.kiq(PAYLOAD) for _ in range(50)])
    await broker.shutdown()


if __name__ == "__main__":
    if mode() == "fill":
        asyncio.run(fill())
    else:
        command = os.path.join(os.path.dirname(sys.executable), "taskiq")
        os.execv(command, [command, "worker", "taskiq_bench:broker", "-w", "1", "--max-async-tasks", "100",
                           "--ack-type", "when_executed", "--log-level", "ERROR"])  # fmt: skip
