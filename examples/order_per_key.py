"""Bookings of one account run in order, one at a time, though one fails; accounts do not wait for each other.

No server needed: `python examples/order_per_key.py`.
"""

import asyncio
from collections import defaultdict

from veredus import App, current

app = App()
booked: dict[str, list[int]] = defaultdict(list)


@app.task(name="book", queue="bookings", retry_delay=0.1)
async def book(account: str, amount: int) -> None:
    await asyncio.sleep(0.01)
    if amount == 3 and current().attempt == 1:
        raise RuntimeError("the bank did not answer; 4 and 5 wait until this one is through")
    booked[account].append(amount)


async def main() -> None:
    async with app:
        await app.enqueue_many(
            book.using(order_key=account).call(account, amount)
            for amount in range(1, 6)
            for account in ("ann", "bob", "eve")
        )
        async with app.worker(queues="bookings", concurrency=20):
            while sum(map(len, booked.values())) < 15:
                await asyncio.sleep(0.01)
    for account, amounts in sorted(booked.items()):
        print(account, amounts)


if __name__ == "__main__":
    asyncio.run(main())
