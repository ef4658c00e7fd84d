"""A producer in a process of its own: one task after another, and a line for each that says how its enqueue ended."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from veredus import App
from veredus.errors import StoreError


async def main(url: str, report: str) -> None:
    """Until the file `report` + ".stop" exists."""
    async with App(url) as app:
        with Path(report).open("w", buffering=1) as lines:
            number = 0
            while not Path(f"{report}.stop").exists():
                task_id = f"{Path(report).name}-{number}"
                try:
                    await app.enqueue("job", {}, task_id=task_id)
                except StoreError as exc:
                    lines.write(f"{task_id} {time.time()} {type(exc).__name__}\n")  # stored or not: nobody knows
                else:
                    lines.write(f"{task_id} {time.time()} stored\n")
                number += 1
                await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
