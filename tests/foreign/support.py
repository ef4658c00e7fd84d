"""A worker with all roles over whatever is in Redis."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.support.waiting import until
from veredus import App, Limit
from veredus.worker.worker import Worker

FAST: dict[str, Any] = {"lease": 1.5, "sweep": 0.2, "janitor_interval": 0.2, "forward_interval": 0.2}


class Notes(logging.Handler):
    """What was logged, also while no test captures it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def __enter__(self) -> Notes:
        logging.getLogger("veredus").addHandler(self)
        logging.getLogger("veredus").propagate = False  # names that are no UTF-8 cannot be sent to pytest's controller
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("veredus").removeHandler(self)
        logging.getLogger("veredus").propagate = True

    def unexpected(self) -> list[str]:
        """Lines with a traceback: what a role did not see coming. An attempt of a durable task that finds what was kept
        damaged fails with one."""
        return [one.getMessage() for one in self.records if one.exc_info and one.module != "failure_log"]


async def work_beside(
    url: str,
    queues: Sequence[str],
    damage: Callable[[App], Awaitable[None]],
    *,
    after: Callable[[App], Awaitable[None]],
) -> Notes:
    """Run a worker of the damaged queues and a good one: what is good runs, at once, delayed and aggregated, and no
    role ends. Returns what was logged."""
    app, ran, together = App(url), list[int](), list[int]()

    @app.task(name="note", queue="good", limit=Limit(concurrency=50), max_retry=0)
    async def note(n: int) -> None:
        ran.append(n)

    @app.task(name="together", queue="good")
    async def made(n: int) -> None:
        together.append(n)

    @app.aggregate("g", queue="good", grace=1, max_size=2)
    async def aggregate(group: str, members: list[bytes]) -> Any:
        return made.call(len(members))

    app.schedule("@every 1h", note.call(0))
    worker: Worker = app.worker([*queues, "good"], health_check=lambda error: None, **FAST)
    with Notes() as notes:
        try:
            await damage(app)
            async with worker:
                await note.enqueue(1)
                await note.using(delay=0.05).enqueue(2)
                for _ in range(2):
                    await note.using(group="g").enqueue(3)
                await until(lambda: {1, 2} <= set(ran) and together == [2], what="the good tasks")
                await note.enqueue(4)  # also after all roles have met the damage
                await until(lambda: 4 in ran)
                restarts = dict(worker.signs.restarts)
            await after(app)
        finally:
            await app.close()
    assert restarts == {}, notes.unexpected()
    assert notes.unexpected() == []
    return notes
