"""SAQ: a hundred jobs at once."""

import asyncio

from saq import Queue, Worker
from stamps import COUNT, PAYLOAD, URL, mode, tick


async def noop(ctx, *, data):
    tick()


async def main():
    queue = Queue.from_url(URL)
    await queue.connect()
    if mode() == "fill":
        for _ in range(0, COUNT, 50):
            await asyncio.gather(*[queue.enqueue("noop", data=PAYLOAD, ttl=-1) for _ in range(50)])
    else:
        await Worker(queue, functions=[noop], concurrency=100).start()


if __name__ == "__main__":
    asyncio.run(main())
