"""At most 20 mails per half second over all workers, and two at once to each host; what has no limit does not wait.

No server needed: `python examples/limits.py`.
"""

import asyncio
import time
from collections import Counter

from veredus import App, Limit

app = App()
running: Counter[str] = Counter()
most: Counter[str] = Counter()
starts: list[float] = []


@app.task(name="send_mail", queue="mails", limit=[Limit(rate="20/500ms"), Limit(concurrency=2, per="key")])
async def send_mail(host: str) -> None:
    starts.append(time.monotonic())
    running[host] += 1
    most[host] = max(most[host], running[host])
    await asyncio.sleep(0.02)
    running[host] -= 1


async def main() -> None:
    async with app:
        hosts = ["a.example", "b.example", "c.example"] * 20
        await app.enqueue_many(send_mail.using(limit_key=host).call(host) for host in hosts)
        async with app.worker(queues="mails", concurrency=20), app.worker(queues="mails", concurrency=20):
            while len(starts) < 60 or any(running.values()):
                await asyncio.sleep(0.01)
    print(f"60 mails in {starts[-1] - starts[0]:.1f} s")
    for host, number in sorted(most.items()):
        print(f"{host}: at most {number} at once")


if __name__ == "__main__":
    asyncio.run(main())
