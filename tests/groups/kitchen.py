"""An app whose members and summaries are easy to follow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.integration.support import Look
from tests.support.waiting import until
from veredus import App, Call, Job


class Kitchen:
    """An app with a member task, a summary task, and what the summaries got."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.served: list[tuple[str, list[Any]]] = []
        self.item = app.task(name="item")(_item)

        @app.task(name="summary")
        async def summary(group: str, members: list[Any]) -> None:
            self.served.append((group, members))

        self.summary = summary

    def aggregate(self, pattern: str = "*", **settings: Any) -> None:
        @self.app.aggregate(pattern, **{"grace": 1, **settings})
        def digest(group: str, jobs: list[Job]) -> Call[Any]:
            return self.summary.call(group, [job.json()["n"] for job in jobs])

    async def add(self, group: str, *numbers: int, **options: Any) -> list[str]:
        task = self.item.using(group=group, **options)
        return [handle.id for handle in await self.app.enqueue_many(task.call(n) for n in numbers)]

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[Any]:
        worker = self.app.worker(concurrency=10, **settings)
        async with worker:
            yield worker

    async def has_served(self, count: int) -> None:
        await until(lambda: sum(len(members) for _, members in self.served) >= count)


def _item(n: int) -> None: ...


async def nothing_is_left(look: Look) -> bool:
    patterns = ("asynq:{default}:t:*", "asynq:{default}:[gau]*")
    return not any([await look.client.keys(pattern) for pattern in patterns])
