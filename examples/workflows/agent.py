"""An agent: a model is asked what to do next, tools run as steps or children, and a person is asked when it says so.

Each answer of the model is a step: it is paid for once, and the run goes on where it was after a crash or a deployment.
No server needed: `python examples/workflows/agent.py`, or `pytest examples/workflows/agent.py`.
"""

import asyncio
from typing import Any

from veredus import App, current

app = App()
asked: list[int] = []


async def ask_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A call of a language model, in real life."""
    asked.append(len(messages))
    script = [
        {"tool": "search", "argument": "hotels in Oslo"},
        {"tool": "search", "argument": "trains to Oslo"},
        {"ask": "Book both for 320 EUR?"},
        {"answer": "booked"},
    ]
    return script[sum(message["role"] == "model" for message in messages)]


@app.task(timeout=60)
async def search(query: str) -> str:
    return f"3 results for {query}"


@app.task
async def agent(goal: str) -> str:
    job = current()
    messages: list[dict[str, Any]] = [{"role": "user", "text": goal}]
    for _ in range(20):  # for longer talks: end by enqueueing a successor in a step
        thought = await job.step(ask_model, messages)
        messages.append({"role": "model", **thought})
        if "answer" in thought:
            return str(thought["answer"])
        if "tool" in thought:
            reply = await job.run(search.call(thought["argument"]))
        else:
            said = await job.wait_for(f"said:{job.id}:{len(messages)}", timeout=86400)
            reply = "no answer; give up" if said is None else said
        messages.append({"role": "tool", "text": reply})
    raise RuntimeError("too many turns")


async def test_the_model_is_asked_once_per_turn_although_the_worker_crashes() -> None:
    asked.clear()
    async with app.test() as q:
        for calls in (1, 4):
            q.crash(after=calls)
        handle = await agent.enqueue("a weekend in Oslo")
        await q.advance(3600)
        assert (await handle.status()).state == "scheduled"
        await app.emit(f"said:{handle.id}:6", "yes")
        await q.drain()
        assert await handle.result() == "booked"
        run = await handle.durable_run()
        assert run is None or run.waiting == ""
    assert asked == [1, 3, 5, 7]


async def main() -> None:
    async with app, app.worker():
        handle = await agent.enqueue("a weekend in Oslo")
        await app.emit(f"said:{handle.id}:6", "yes")
        print(await handle.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
