"""An approval: a request waits for a person for two days, reminds after one, and uses no worker while it waits.

No server needed: `python examples/workflows/approval.py`, or `pytest examples/workflows/approval.py`.
"""

import asyncio
from datetime import timedelta

from veredus import App, current

app = App()
mails: list[str] = []


async def mail(to: str, text: str) -> None:
    mails.append(f"{to}: {text}")


@app.task
async def request_leave(name: str, days: int) -> str:
    job = current()
    event = f"leave-decided:{job.id}"  # one event per request
    await job.step(mail, "boss", f"{name} asks for {days} days", name="ask")
    answer = await job.wait_for(event, timeout=timedelta(days=1))
    if answer is None:
        await job.step(mail, "boss", f"{name} still waits", name="remind")
        answer = await job.wait_for(event, timeout=timedelta(days=1))
    verdict = "refused, nobody answered" if answer is None else "granted" if answer["granted"] else "refused"
    await job.step(mail, name, verdict, name="answer")
    return verdict


async def decide(task_id: str, granted: bool) -> bool:
    """What a web page or `veredus emit` does. Returns False for all but the first decision."""
    return await app.emit(f"leave-decided:{task_id}", {"granted": granted})


async def test_the_first_decision_counts() -> None:
    mails.clear()
    async with app.test() as q:
        handle = await request_leave.enqueue("ada", 3)
        await q.advance(timedelta(hours=30))
        assert (await decide(handle.id, True), await decide(handle.id, False)) == (True, False)
        await q.drain()
        assert await handle.result() == "granted"
    assert mails == ["boss: ada asks for 3 days", "boss: ada still waits", "ada: granted"]


async def test_nobody_answers() -> None:
    mails.clear()
    async with app.test() as q:
        handle = await request_leave.enqueue("ada", 3)
        await q.advance(timedelta(days=2))
        assert await handle.result() == "refused, nobody answered"


async def main() -> None:
    async with app, app.worker():
        handle = await request_leave.enqueue("ada", 3)
        await decide(handle.id, True)
        print(await handle.result(timeout=30))
    print(*mails, sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
