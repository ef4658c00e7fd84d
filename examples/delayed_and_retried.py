"""A task that is due in a quarter of a second and fails twice before it succeeds; another one that is given up.

No server needed: `python examples/delayed_and_retried.py`.
"""

import asyncio
import time

from veredus import App, SkipRetry, TaskFailed, current

app = App()


@app.task(name="charge", queue="payments", max_retry=5, retry_delay=[0.1, 0.2])
async def charge(order: int) -> str:
    if order < 0:
        raise SkipRetry(f"there is no order {order}")
    if current().attempt < 3:
        raise ConnectionError("the bank does not answer")
    return f"order {order} paid at attempt {current().attempt}"


async def main() -> None:
    async with app, app.worker(queues="payments"):
        begun = time.monotonic()
        later = await charge.using(delay=0.25).enqueue(7)
        wrong = await charge.enqueue(-1)
        print(later.state)
        print(await later.result(timeout=30))
        print("in time" if time.monotonic() - begun >= 0.55 else "too early")  # 250 ms, then 100, then 200
        try:
            await wrong.result(timeout=30)
        except TaskFailed as exc:
            print("archived:", exc.error)


if __name__ == "__main__":
    asyncio.run(main())
