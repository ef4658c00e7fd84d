"""Veredus with its defaults."""

import asyncio

from stamps import COUNT, PAYLOAD, URL, mode, tick

from veredus import App

app = App(URL)


@app.task(name="noop", queue="bench")
async def noop(data: str) -> None:
    tick()


async def fill() -> None:
    async with app:
        await app.enqueue_many(noop.call(PAYLOAD) for _ in range(COUNT))


if __name__ == "__main__":
    if mode() == "fill":
        asyncio.run(fill())
    else:
        app.worker().run()
