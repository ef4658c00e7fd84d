"""Enqueueing, in all its forms. Each twice: while nobody takes the tasks, and while a worker runs them at once, so that
they are gone before the caller can try again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.faults.expectations import producer, producer_of_many
from tests.faults.scenario import Scenario
from tests.faults.stage import Scene, Stage
from tests.support.waiting import until
from veredus import App
from veredus.wire import keys

Send = Callable[[App], Awaitable[object]]


def _using(**options: Any) -> Send:
    async def send(app: App) -> None:
        await app.tasks["plain"].using(**options).enqueue("a")

    return send


async def _sync(app: App) -> None:
    """In a thread, on a connection of its own."""
    await asyncio.to_thread(app.tasks["plain"].enqueue_sync, "a")


async def _many(app: App) -> None:
    await app.enqueue_many([app.tasks["plain"].call(name) for name in "abc"])


async def _many_queues(app: App) -> None:
    """With ids, so that it can be asked for again."""
    plain = app.tasks["plain"]
    calls = [(plain.using(task_id=name, queue=queue), name) for name, queue in (("a", "q"), ("b", "q"), ("c", "r"))]
    await app.enqueue_many([task.call(name) for task, name in calls])


async def _start_worker(stage: Stage) -> None:
    await stage.enter(stage.worker(stage.direct, ["q", "r"]))


async def _start_aggregating(stage: Stage) -> None:
    stage.aggregate(stage.direct)
    await _start_worker(stage)


async def _until_run(stage: Stage) -> None:
    await stage.settled()


async def _archived_one(stage: Stage) -> None:
    task = await stage.direct.tasks["plain"].using(task_id="fixed").enqueue("old")
    await stage.direct.inspector().archive("q", task.id)


async def _no_step(stage: Stage) -> None:
    pass


def _ran(*names: str) -> Scene:
    return Scene(dict.fromkeys(names, (1,)), processed=len(names))


def _both(
    name: str,
    calls: tuple[str, ...],
    send: Send,
    after: Scene,
    *,
    work: Callable[[Stage], Awaitable[None]] = _start_worker,
    prepare: Callable[[Stage], Awaitable[None]] = _no_step,
    before: Scene | None = None,
    looks: bool = False,
) -> list[Scenario]:
    """With `looks`, the client looks afterwards whether somebody is alive who keeps what was asked for: a worker that
    has just been started first has to say so."""

    async def act(stage: Stage) -> None:
        await send(stage.app)

    async def prepare_at_work(stage: Stage) -> None:
        await prepare(stage)
        await work(stage)
        await until(lambda: stage.redis.zcard(keys.SERVERS), what="the worker's record")

    waiting = Scenario(
        f"enqueue-{name}",
        ("setname", "sadd", *calls, *(("zrange",) if looks else ())),
        act,
        after,
        producer,
        prepare,
        before or Scene(),
        finish=work,
        tries_again=True,
    )
    return [
        waiting,
        replace(
            waiting,
            name=f"{waiting.name}-at-work",
            calls=(*waiting.calls, "get", "get") if looks else waiting.calls,
            prepare=prepare_at_work,
            meanwhile=_until_run,
            finish=_no_step,
            only=(*calls, "get"),
        ),
    ]


PENDING = ("pending", 0)
_OLD: Mapping[str, tuple[str, int]] = {"old": ("archived", 0)}

PRODUCERS: list[Scenario] = [
    *_both("one", ("task-enqueue",), _using(), _ran("a")),
    *_both("sync", ("task-enqueue",), _sync, _ran("a")),
    *_both("many", ("task-enqueue",), _many, _ran("a", "b", "c")),
    replace(
        _both("many-queues", ("task-enqueue", "task-enqueue"), _many_queues, _ran("a", "b", "c"))[0],
        expect=producer_of_many,
        between=(Scene(places={"a": PENDING, "b": PENDING}), Scene(places={"c": PENDING})),
    ),
    *_both("delayed", ("task-schedule",), _using(delay=0.05), _ran("a")),
    *_both("unique", ("task-holders+task-enqueue",), _using(unique_for=60), _ran("a")),
    *_both("ordered", ("order-enqueue",), _using(order_key="k"), _ran("a"), looks=True),
    *_both("with-id", ("task-enqueue",), _using(task_id="fixed"), _ran("a")),
    *_both(
        "replace",
        ("task-enqueue", "task-replace+task-enqueue"),
        _using(task_id="fixed", replace=True),
        _ran("a"),
        prepare=_archived_one,
        before=Scene(places=_OLD),
    ),
    *_both("group", ("group-add",), _using(group="g"), _ran("group a"), work=_start_aggregating, looks=True),
]
