"""The Python half: runs `image:resize`, which the Go half sends, and sends `thumbnail:ready`, which the Go half runs.

Beside Go: `veredus worker worker:app --redis redis://localhost:6379/0`. Alone, `python worker.py` does what the Go half
would do, so that it can be seen without Go.
"""

import asyncio

from veredus import App

app = App()


@app.handler("image:resize", queue="images")
async def resize(path: str, width: int) -> None:
    thumbnail = f"{path.removesuffix('.png')}-{width}.png"
    await app.enqueue("thumbnail:ready", {"path": thumbnail}, queue="thumbnails", retention=60)
    print("resized", thumbnail)


async def main() -> None:
    async with app:
        await app.enqueue(
            "image:resize", b'{"path":"/a.png","width":64}', queue="images", max_retry=5
        )  # Go's own bytes
        async with app.worker(queues="images", burst=True) as worker:
            await worker.wait()
        for task in await app.inspector().tasks("thumbnails", "pending"):
            print("for Go:", task.type, task.payload.decode())
            await app.inspector().delete("thumbnails", task.id)  # nobody here will run it


if __name__ == "__main__":
    asyncio.run(main())
