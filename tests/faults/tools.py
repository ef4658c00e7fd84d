"""What people and tools ask for: changes by the inspector, cancelling, waiting for a result; and schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.faults.expectations import always_done, asked_once, in_steps, starting, waiting
from tests.faults.scenario import Answer, Scenario, Step
from tests.faults.stage import Scene, Stage
from tests.support.servers import raw
from tests.support.waiting import until
from veredus.inspector.inspector import Inspector
from veredus.wire import keys

PENDING, SCHEDULED, ARCHIVED = ("pending", 0), ("scheduled", 0), ("archived", 0)
Change = Callable[[Inspector], Awaitable[object]]


def _there(*names: str, **options: Any) -> Step:
    async def prepare(stage: Stage) -> None:
        for name in names:
            await stage.direct.tasks["plain"].using(task_id=name, **options).enqueue(name)
        stage.notes["queues"] = lambda: _queues(stage)
        stage.notes["marks"] = lambda: _marks(stage)
        stage.notes["known"] = lambda: stage.redis.sismember(keys.QUEUES, "q")

    return prepare


async def _queues(stage: Stage) -> tuple[str, ...]:
    """Those that have tasks."""
    return tuple(sorted({raw(key).decode()[7:8] for key in await stage.redis.keys("asynq:{*}:t:*")}))


async def _marks(stage: Stage) -> tuple[str, ...]:
    """Whether the queue is paused or closed."""
    return tuple([name for name in ("paused", "closed") if await stage.redis.exists(f"asynq:{{q}}:{name}")])


def _scene(places: dict[str, tuple[str, int]], *marks: str, queue: str = "q", known: int = 1) -> Scene:
    return Scene(places=places, more={"queues": (queue,) if places else (), "marks": marks, "known": known})


def _change(
    name: str,
    calls: tuple[str, ...],
    change: Change,
    before: Scene,
    after: Scene,
    prepare: Step,
    *,
    expect: Answer = asked_once,
    between: tuple[Scene, ...] = (),
) -> Scenario:
    async def act(stage: Stage) -> None:
        await change(stage.app.inspector())

    return Scenario(f"inspector-{name}", ("setname", *calls), act, after, expect, prepare, before, between)


_ONE, _THREE = _there("a"), _there("a", "b", "c")
_THREE_PENDING = _scene(dict.fromkeys("abc", PENDING))
_A, _A_SCHEDULED, _A_ARCHIVED = _scene({"a": PENDING}), _scene({"a": SCHEDULED}), _scene({"a": ARCHIVED})
_PAUSED, _CLOSED = _scene({"a": PENDING}, "paused"), _scene({"a": PENDING}, "closed")
_MARK, _UNMARK = ("sismember", "time", "setnx"), ("sismember", "del")


async def _paused_one(stage: Stage) -> None:
    await _ONE(stage)
    await stage.direct.inspector().pause("q")


async def _closed_one(stage: Stage) -> None:
    await _ONE(stage)
    await stage.direct.inspector().close_queue("q")


async def _edit(inspector: Inspector) -> None:
    await inspector.edit_payload("q", "a", {"name": "b"})


CHANGES: list[Scenario] = [
    _change("run", ("inspect-run",), lambda i: i.run("q", "a"), _A_SCHEDULED, _A, _there("a", delay=3600)),
    _change("archive", ("llen", "inspect-archive"), lambda i: i.archive("q", "a"), _A, _A_ARCHIVED, _ONE),
    _change("delete", ("llen", "inspect-delete"), lambda i: i.delete("q", "a"), _A, _scene({}), _ONE),
    _change(
        "reschedule",
        ("llen", "inspect-reschedule"),
        lambda i: i.reschedule("q", "a", delay=60),
        _A,
        _A_SCHEDULED,
        _ONE,
    ),
    _change("edit", ("hget", "inspect-edit"), _edit, _A, _scene({"b": PENDING}), _ONE),
    _change(
        "move",
        ("hget", "llen", "inspect-move"),
        lambda i: i.move("q", "a", "r"),
        _A,
        _scene({"a": PENDING}, queue="r"),
        _ONE,
    ),
    _change(
        "cancel",
        ("time", "cancel-cancel", "cancel-cancel"),
        lambda i: i.cancel("q", "a"),
        _A,
        _A_ARCHIVED,
        _ONE,
    ),
    _change("pause", _MARK, lambda i: i.pause("q"), _A, _PAUSED, _ONE),
    _change("resume", _UNMARK, lambda i: i.resume("q"), _PAUSED, _A, _paused_one),
    _change("close", _MARK, lambda i: i.close_queue("q"), _A, _CLOSED, _ONE),
    _change("open", ("del",), lambda i: i.open_queue("q"), _CLOSED, _A, _closed_one),
    _change(
        "run-all",
        ("sismember", "zcard", "inspect-run_all"),
        lambda i: i.run_all("q", "scheduled"),
        _scene(dict.fromkeys("abc", SCHEDULED)),
        _THREE_PENDING,
        _there("a", "b", "c", delay=3600),
    ),
    _change(
        "archive-all",
        ("sismember", "zcard", "llen", "llen", "inspect-archive_all"),
        lambda i: i.archive_all("q", "pending"),
        _THREE_PENDING,
        _scene(dict.fromkeys("abc", ARCHIVED)),
        _THREE,
    ),
    _change(
        "delete-all",
        ("sismember", "llen", "inspect-delete_all"),
        lambda i: i.delete_all("q", "pending"),
        _THREE_PENDING,
        _scene({}),
        _THREE,
    ),
    _change(
        "delete-queue",
        (
            *("sismember", "exists", "time", "setnx", "inspect-stats", "zcard", "llen", "inspect-delete_all"),
            *("zcard", "zcard", "zcard", "sscan", "inspect-stats", "smembers", "scan", "inspect-clear"),
        ),
        lambda i: i.delete_queue("q", force=True),
        _THREE_PENDING,
        _scene({}, known=0),
        _THREE,
        expect=in_steps,
        between=(_scene({}),),
    ),
]


def _cancelled(then: str, after: Scene) -> Scenario:
    async def act(stage: Stage) -> None:
        await stage.app.handle("a", queue="q").cancel(then)

    calls = ("setname", "cancel-cancel", "cancel-cancel")[: 3 if then == "archive" else 2]
    return Scenario(f"cancel-{then}", calls, act, after, asked_once, _ONE, _A)


async def _wait_for_result(stage: Stage) -> None:
    result = asyncio.create_task(stage.app.handle("a", queue="q").result(8))

    async def is_waited_for() -> bool:
        return result.done() or bool(await stage.redis.hexists(keys.task("q", "a"), "waited"))

    await until(is_waited_for)
    if not result.done():
        await stage.enter(stage.worker(stage.direct))
    assert await result == "answer of a"


async def _answer_waits(stage: Stage) -> None:
    await stage.direct.tasks["answer"].using(task_id="a").enqueue("a")


# Schedules.

_HOUR = 3600


async def _three_ticks_missed(stage: Stage) -> None:
    """A schedule that has stood still for three hours."""
    entry = stage.app.schedule("@every 1h", stage.app.tasks["plain"].call("tick"))
    seconds, _ = await stage.redis.time()
    await stage.redis.hset(keys.cron("q", entry.id), "at", str(seconds - 3 * _HOUR - 10))
    await stage.enter(stage.worker(stage.direct))
    stage.notes["shown"] = lambda: stage.redis.zcard(keys.SCHEDULERS)
    stage.notes["leader"] = lambda: stage.redis.exists(keys.scheduler_leader(stage.app.schedule_scope()))


def _ticks(fired: int, shown: int) -> Scene:
    more = {"shown": shown, "leader": shown}
    return Scene({"tick": (1,) * fired} if fired else {}, processed=fired, more=more)


async def _catch_up(stage: Stage) -> None:
    async with stage.app.scheduler():
        await stage.becomes(_ticks(3, 1))


async def _catch_up_with_history(stage: Stage) -> None:
    """The history is for people. A tick whose answer was lost is not in it, but a history that cannot be written at
    once is written later."""
    (entry_id,) = stage.app.schedules.entries

    async def is_written() -> bool:
        return int(await stage.redis.zcard(keys.scheduler_history(entry_id))) == 3

    async with stage.app.scheduler():
        await until(is_written)


TOOLS: list[Scenario] = [
    *CHANGES,
    _cancelled("archive", _A_ARCHIVED),
    _cancelled("delete", _scene({})),
    Scenario(
        "result",
        ("setname", "subscribe", "setname", "zrange", "result-await"),
        _wait_for_result,
        Scene({"a": (1,)}, {"a": ("completed", 0)}, 1),
        waiting,
        _answer_waits,
        Scene(places={"a": PENDING}),
    ),
    Scenario(
        "schedule",
        (
            *("setname", "ping", "cron-lead", "cron-begin", "sadd"),
            *("cron-tick+task-enqueue",) * 3,
            *("cron-record", "cron-show", "cron-hide", "cron-resign"),
        ),
        _catch_up,
        _ticks(3, 0),
        starting("ping"),
        _three_ticks_missed,
        _ticks(0, 0),
    ),
    Scenario(
        "schedule-history",
        ("cron-record",),
        _catch_up_with_history,
        _ticks(3, 0),
        always_done,
        _three_ticks_missed,
        in_order=False,
        only=("cron-record",),
    ),
]
