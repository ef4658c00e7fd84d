"""BullMQ's Python port: a hundred jobs at once, removed when done."""

import asyncio

from bullmq import Queue, Worker
from stamps import COUNT, PAYLOAD, URL, mode, tick


async def process(job, token):
    tick()


async def main():
    if mode() == "fill":
        queue = Queue("bench", {"connection": URL})
        for _ in range(0, COUNT, 500):
            await queue.addBulk(
                [{"name": "noop", "data": {"data": PAYLOAD}, "opts": {"removeOnComplete": True}} for _ in range(500)]
            )
        await queue.close()
    else:
        worker = Worker("bench", process, {"connection": URL, "concurrency": 100})
        await asyncio.Event().wait()
        await worker.close()


if __name__ == "__main__":
    asyncio.run(main())
