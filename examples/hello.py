"""The smallest complete program: declare a task, send it, run it. No server needed: `python examples/hello.py`."""

import asyncio

from veredus import App

app = App()  # VEREDUS_REDIS_URL, else a real server embedded on this machine


@app.task(queue="greetings", max_retry=5, timeout=30)
async def greet(name: str, punctuation: str = "!") -> None:
    print(f"hello {name}{punctuation}")


async def main() -> None:
    async with app:
        await greet.enqueue("world")
        await greet.using(delay=0.25).enqueue("later", punctuation="...")
        async with app.worker(queues="greetings"):
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(main())
