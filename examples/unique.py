"""However often a feed is asked to be refreshed, one refresh waits or runs; afterwards it can be asked for again.

No server needed: `python examples/unique.py`.
"""

import asyncio

from veredus import App

app = App()
refreshed: list[int] = []


@app.task(name="refresh", queue="feeds", unique_for=60)
async def refresh(feed: int) -> None:
    await asyncio.sleep(0.05)
    refreshed.append(feed)


async def main() -> None:
    async with app:
        asked = await asyncio.gather(*(refresh.enqueue(number % 3) for number in range(30)))
        print("asked for:", len(asked), "stored:", sum(handle.created for handle in asked))
        async with app.worker(queues="feeds", burst=True) as worker:
            await worker.wait()
        print("refreshed:", sorted(refreshed))
        print("again:", (await refresh.enqueue(1)).created)
        async with app.worker(queues="feeds", burst=True) as worker:
            await worker.wait()


if __name__ == "__main__":
    asyncio.run(main())
