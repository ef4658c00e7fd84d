"""The Veredus side of `make bench-peers`, with the commands of go/main.go and default settings.

python -m benchmarks.peers.ours work URL
python -m benchmarks.peers.ours enqueue URL one|concurrent|batch N
python -m benchmarks.peers.ours send URL now|later|hang N
python -m benchmarks.peers.ours steps URL N
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time


async def enqueue(how: str, count: int) -> None:
    from benchmarks import enqueue as producers
    from benchmarks.tasks import app, noop

    ways = {
        "one": producers.one_at_a_time,
        "concurrent": producers.from_coroutines,
        "batch": producers.in_one_call,
    }
    async with app:
        await noop.enqueue(producers.PAYLOAD)
        spent = time.process_time()
        rate = await ways[how](count)
        print(json.dumps({"seconds": count / rate, "cpu": time.process_time() - spent}))


async def send(how: str, count: int) -> None:
    from benchmarks.tasks import app, hang, stamp

    async with app:
        for _ in range(count):
            if how == "hang":
                await hang.enqueue(time.time())
            elif how == "later":
                delay = random.uniform(0.5, 10.0)
                await stamp.using(delay=delay).enqueue(time.time() + delay)
            else:
                await asyncio.sleep(random.uniform(0.0, 0.1))
                await stamp.enqueue(time.time())


async def steps(each: int) -> None:
    """Fifty tasks with so many steps."""
    from benchmarks.tasks import app, steps

    async with app:
        await app.enqueue_many(steps.call(each) for _ in range(50))


def main() -> None:
    what, url, *rest = sys.argv[1:]
    os.environ["VEREDUS_REDIS_URL"] = url
    if what == "work":
        command = [sys.executable, "-m", "veredus", "worker", "benchmarks.tasks:app", "-q", "bench"]
        os.execv(sys.executable, [*command, "--redis", url, "--log-level", "error"])
    if what == "steps":
        asyncio.run(steps(int(rest[0])))
        return
    asyncio.run((enqueue if what == "enqueue" else send)(rest[0], int(rest[1])))


if __name__ == "__main__":
    main()
