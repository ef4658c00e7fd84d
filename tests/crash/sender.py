"""Sends tasks in every way a producer has, and writes down the ids of those that it was told are stored.

Arguments: the address, a number for this producer, how many tasks, the file for the ids.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from veredus import App

BATCH = 10


async def send(url: str, number: int, count: int) -> list[str]:
    app = App(url)
    ids: list[str] = []

    def one(n: int) -> Any:
        ways: list[dict[str, Any]] = [
            {},
            {"task_id": f"{number}-{n}"},
            {"unique_for": 600},
            {"delay": 0.02},
            {"order_key": f"{number}-{n % 7}"},
        ]
        return app.enqueue("mark", {"n": f"{number}-{n}"}, **ways[n % len(ways)])

    for first in range(0, count, 2 * BATCH):
        # As many tasks one by one, sharing round trips, as in one call.
        singles = [one(n) for n in range(first, first + BATCH)]
        many = app.enqueue_many([app.call("mark") for _ in range(min(BATCH, count - first - BATCH))])
        *alone, together = await asyncio.gather(*singles, many)
        handles = [*alone, *together]
        assert all(handle.created for handle in handles)
        ids += [handle.id for handle in handles]
    await app.close()
    return ids


if __name__ == "__main__":
    url, number, count, path = sys.argv[1:]
    Path(path).write_text("\n".join(asyncio.run(send(url, int(number), int(count)))))
