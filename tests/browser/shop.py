"""An app with something on every page of the dashboard."""

from __future__ import annotations

import asyncio

from veredus import App, Job, SkipRetry, current
from veredus.client.call import Call
from veredus.model.limits import Limit

app = App()


@app.task(name="email:send", queue="mail", max_retry=3, retry_delay=lambda *_: 3600.0)
async def send(n: int) -> None:
    if n % 10 == 1:
        raise RuntimeError(f"451 mailbox {n} busy, try again later")
    if n % 10 == 2:
        raise SkipRetry(f"550 no such mailbox {n}")


@app.task(name="shop.mail.send_order_confirmation_to_the_customer", queue="mail")
async def confirm(n: int) -> None:
    raise SkipRetry(f"the server at smtp-{n}.provider.example.org closed the connection after a very long time")


@app.task(name="image:resize", queue="images", retention=3600)
async def resize(n: int) -> dict[str, int]:
    return {"width": n}


@app.task(name="report:build", queue="reports", timeout=900)
async def build(month: int) -> None:
    for step in range(20_000):
        await current().progress(step / 20_000, f"page {step} of 20000")
        await asyncio.sleep(0.04)


@app.task(name="ledger:book", queue="ledger", order_hold=True)
async def book(account: int) -> None:
    if account == 0:
        raise SkipRetry("account 0 is closed")
    await asyncio.Event().wait()


@app.aggregate("digest", queue="mail", grace=3000)
def digest(group: str, jobs: list[Job]) -> Call[None]:
    return send.call(len(jobs))


@app.cron("@every 2s", name="nightly:cleanup", queue="images")
async def cleanup() -> None: ...


app.limit("images", Limit(concurrency=3, rate="1000/s"))
