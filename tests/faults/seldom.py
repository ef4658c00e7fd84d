"""What people ask for now and then: bounded queues, order keys, limits, schedules, groups of errors."""

from __future__ import annotations

import asyncio

from tests.faults.expectations import asked_once, in_steps, producer
from tests.faults.producers import PENDING
from tests.faults.scenario import Answer, Expect, Scenario, Site, Step
from tests.faults.stage import Scene, Stage
from tests.faults.tools import Change
from tests.support.faults import Fault
from tests.support.waiting import until
from veredus.wire import keys

ARCHIVED, RETRY = ("archived", 0), ("retry", 0)
TWO_RAN = Scene({"first": (1,), "a": (1,)}, processed=2)
ROOM = "task-room+task-enqueue"


async def _no_step(stage: Stage) -> None:
    pass


async def _work(stage: Stage) -> None:
    await stage.enter(stage.worker(stage.direct))


# A queue with a maximum length.


async def _first(stage: Stage) -> None:
    await stage.direct.tasks["plain"].using(task_id="first").enqueue("first")


async def _enqueue_bounded(stage: Stage) -> None:
    stage.app.max_length("q", 2)
    await stage.app.tasks["plain"].enqueue("a")


async def _wait_for_room(stage: Stage) -> None:
    """There is none until a worker has taken what is there."""
    stage.app.max_length("q", 1)
    sending = asyncio.create_task(stage.app.tasks["plain"].using(wait_for_room=20).enqueue("a"))
    await until(lambda: sending.done() or ROOM in stage.proxy.calls)
    if not sending.done():
        await _work(stage)
    await sending


# Changes that a person asks for.


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
    finish: Step = _no_step,
) -> Scenario:
    async def act(stage: Stage) -> None:
        await change(stage.app.inspector())

    return Scenario(
        f"inspector-{name}", ("setname", *calls), act, after, expect, prepare, before, between, finish=finish
    )


async def _held_up(stage: Stage) -> None:
    """The first task of an order key is archived and holds up the second one."""
    plain = stage.direct.tasks["plain"].using(order_key="k", order_hold=True)
    for name in ("a", "b"):
        await plain.using(task_id=name).enqueue(name)
    await stage.direct.inspector().archive("q", "a")


async def _limited(stage: Stage) -> None:
    await _first(stage)
    await stage.redis.hset(keys.limits("q"), "queue", "1 0 0")
    stage.notes["limits"] = lambda: stage.redis.hlen(keys.limits("q"))


async def _failed(stage: Stage) -> None:
    """Two tasks are archived because of the same error, and statistics tell."""
    for name in ("a", "b"):
        await stage.direct.tasks["fail"].using(task_id=name).enqueue(name)
    async with stage.worker(stage.direct):
        await until(lambda: len(stage.attempts) == 2)
    await until(lambda: stage.redis.hlen(keys.errors("q")))


FAILED = {"a": (1,), "b": (1,)}


def _failures(places: dict[str, tuple[str, int]]) -> Scene:
    return Scene(FAILED, places, 2, 2)


async def _scheduled(stage: Stage) -> None:
    """A scheduler that shows its entry."""
    entry = stage.direct.schedule("@every 1h", stage.direct.tasks["plain"].call("tick"))
    stage.app.schedule("@every 1h", stage.app.tasks["plain"].call("tick"))
    await stage.enter(stage.direct.scheduler())
    await until(lambda: stage.redis.zcard(keys.SCHEDULERS))
    stage.notes["paused"] = lambda: stage.redis.hexists(keys.cron("q", entry.id), "paused")


async def _scheduled_and_paused(stage: Stage) -> None:
    await _scheduled(stage)
    await stage.direct.inspector().pause_schedule(_entry(stage))


def _entry(stage: Stage) -> str:
    (entry_id,) = stage.direct.schedules.entries
    return entry_id


_ENTRIES = ("setname", "time", "zrangebyscore", "zremrangebyscore", "lrange", "hexists")


def _on_schedule(verb: str, prepare: Step, before: int, after: int) -> Scenario:
    async def act(stage: Stage) -> None:
        inspector = stage.app.inspector()
        await (inspector.pause_schedule if verb == "pause" else inspector.resume_schedule)(_entry(stage))

    scenes = [Scene(more={"paused": paused}) for paused in (after, before)]
    return Scenario(
        f"inspector-{verb}-schedule", (*_ENTRIES, f"cron-{verb}"), act, scenes[0], _on_entry, prepare, scenes[1]
    )


def _on_entry(site: Site, fault: Fault) -> Expect:
    """Entries that are gone are removed on the way to the others; whether that succeeds does not matter."""
    return Expect.EITHER if site.label == "zremrangebyscore" else asked_once(site, fault)


async def _run_errors(stage: Stage) -> None:
    inspector = stage.app.inspector()
    (group,) = await stage.direct.inspector().errors()
    await inspector.run_errors(group.id)


_HELD = Scene(places={"a": ARCHIVED, "b": ("scheduled", 0)})
SELDOM: list[Scenario] = [
    Scenario(
        "enqueue-bounded",
        ("setname", "sadd", ROOM),
        _enqueue_bounded,
        TWO_RAN,
        producer,
        _first,
        Scene(places={"first": PENDING}),
        finish=_work,
        tries_again=True,
    ),
    Scenario(
        "enqueue-wait-for-room",
        (ROOM,),
        _wait_for_room,
        TWO_RAN,
        producer,
        _first,
        Scene(places={"first": PENDING}),
        in_order=False,
        only=(ROOM,),
        finish=_work,
        tries_again=True,
    ),
    _change(
        "release-order-key",
        ("sismember", "order-release"),
        lambda i: i.release_order_key("q", "k"),
        _HELD,
        Scene(places={"a": ARCHIVED, "b": PENDING}),
        _held_up,
    ),
    _change(
        "remove-limit",
        ("sismember", "hgetall", "limit-declare"),
        lambda i: i.remove_limit("q", "queue"),
        Scene(places={"first": PENDING}, more={"limits": 1}),
        Scene(places={"first": PENDING}, more={"limits": 0}),
        _limited,
    ),
    _on_schedule("pause", _scheduled, 0, 1),
    _on_schedule("resume", _scheduled_and_paused, 1, 0),
    Scenario(
        "inspector-run-errors",
        ("inspect-list", "inspect-run"),
        _run_errors,
        _failures({"a": PENDING, "b": PENDING}),
        in_steps,
        _failed,
        _failures({"a": ARCHIVED, "b": ARCHIVED}),
        in_order=False,
        only=("inspect-list", "inspect-run"),
    ),
]
