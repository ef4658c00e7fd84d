"""streaQ: a hundred tasks at once, no results kept."""

import anyio
from stamps import COUNT, PAYLOAD, URL, mode, tick
from streaq import Worker

worker = Worker(redis_url=URL, concurrency=100)


@worker.task(ttl=0)
async def noop(data: str) -> None:
    tick()


async def fill():
    async with worker:
        for _ in range(0, COUNT, 1000):
            await worker.enqueue_many([noop.enqueue(PAYLOAD) for _ in range(1000)])


if __name__ == "__main__":
    if mode() == "fill":
        anyio.run(fill)
    else:
        worker.run_sync()
