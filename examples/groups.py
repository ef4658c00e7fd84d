"""Comments that arrive one by one become one mail per reader.

No server needed: `python examples/groups.py`.
"""

import asyncio
from dataclasses import dataclass

from veredus import App, Call

app = App()
sent: list[str] = []


@dataclass
class Comment:
    author: str
    text: str


@app.task(name="comment", queue="digests")
async def comment(author: str, text: str) -> None:
    """Never runs by itself: its calls wait in a group."""


@app.task(name="digest_mail", queue="digests")
async def digest_mail(reader: str, lines: list[str]) -> None:
    sent.append(f"to {reader}: " + ", ".join(lines))


@app.aggregate("digest:*", queue="digests", grace=1, max_size=3)
def digest(group: str, comments: list[Comment]) -> Call[None]:
    return digest_mail.call(group.removeprefix("digest:"), [f"{one.author}: {one.text}" for one in comments])


async def main() -> None:
    async with app:
        for reader in ("ann", "bob"):
            for number in range(1, 4):
                await comment.using(group=f"digest:{reader}").enqueue(f"eve{number}", "hello")
        async with app.worker(queues="digests"):
            while len(sent) < 2:
                await asyncio.sleep(0.05)
    print("\n".join(sorted(sent)))


if __name__ == "__main__":
    asyncio.run(main())
