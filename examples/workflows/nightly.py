"""A nightly fan-out: 1,000 accounts are billed by children on any worker, and the report names those that failed.

No server needed: `python examples/workflows/nightly.py`, or `pytest examples/workflows/nightly.py`.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta

from veredus import App, current
from veredus.errors import ChildFailed

app = App()
ACCOUNTS = 1_000
billed: list[int] = []


async def accounts() -> list[int]:
    """From a database, in real life: a step, so that every attempt sees the same ones."""
    return list(range(ACCOUNTS))


@app.task(max_retry=0)
async def bill(account: int) -> int:
    if account == 13:
        raise ValueError("no address")
    billed.append(account)
    return 100 + account % 7


@app.cron("0 2 * * *", max_retry=3)
async def nightly() -> str:
    job = current()
    numbers = await job.step(accounts)
    results = await job.gather("bill", [bill.call(number) for number in numbers], return_errors=True)
    failed = [result.error for result in results if isinstance(result, ChildFailed)]
    total = sum(result for result in results if not isinstance(result, ChildFailed))
    return f"{len(results) - len(failed)} bills, {total} in all; failed: {', '.join(failed)}"


async def test_every_account_is_billed_once_although_the_worker_crashes() -> None:
    billed.clear()
    async with app.test(start=datetime(2030, 1, 1, 1, 59, tzinfo=UTC), concurrency=50) as q:
        q.crash(after="accounts")
        q.crash(after="bill")
        await q.advance(timedelta(hours=1))
        results = [run for run in q.runs if run.type == nightly.name]
        assert results[-1].action == "complete"
        assert q.planned_crashes == 0
    assert sorted(billed) == [number for number in range(ACCOUNTS) if number != 13]


async def main() -> None:
    async with app, app.worker(concurrency=50):
        began = time.monotonic()
        print(await (await nightly.enqueue()).result(timeout=60))
        print(f"in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
