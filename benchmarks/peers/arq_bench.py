"""arq: a hundred jobs at once, no results kept."""

import asyncio

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker
from stamps import COUNT, PAYLOAD, URL, mode, tick


async def noop(ctx, data):
    tick()


async def fill():
    pool = await create_pool(RedisSettings.from_dsn(URL))
    for _ in range(0, COUNT, 100):
        await asyncio.gather(*[pool.enqueue_job("noop", PAYLOAD) for _ in range(100)])


if __name__ == "__main__":
    if mode() == "fill":
        asyncio.run(fill())
    else:
        asyncio.set_event_loop(asyncio.new_event_loop())
        Worker([noop], redis_settings=RedisSettings.from_dsn(URL), max_jobs=100, keep_result=0, poll_delay=0.01).run()
