"""What a worker does, from its start to its stop. Only the worker under test reaches the server through the proxy."""

from __future__ import annotations

import asyncio
import math
from typing import Any
from unittest.mock import patch

from tests.faults.expectations import always_done, starting
from tests.faults.scenario import Scenario, Step
from tests.faults.stage import Scene, Stage
from tests.support.waiting import pause, until
from veredus.store.store import Store, Work, connect
from veredus.wire import keys
from veredus.worker.roles import recoverer

RAN = Scene({"a": (1,)}, processed=1)
WAITS = Scene(places={"a": ("pending", 0)})
PENDING, COMPLETED = ("pending", 0), ("completed", 0)


def _enqueued(task: str, *names: str, queues: tuple[str, ...] = ("q",), **options: Any) -> Step:
    async def prepare(stage: Stage) -> None:
        for number, name in enumerate(names or ("a",)):
            queue = queues[number % len(queues)]
            await stage.direct.tasks[task].using(queue=queue, task_id=name, **options).enqueue(name)

    return prepare


def _work(after: Scene, queues: Any = "q", **settings: Any) -> Step:
    """Start a worker, wait until all is as it shall be, and stop it."""

    async def act(stage: Stage) -> None:
        async with stage.worker(stage.app, queues, **settings):
            await stage.becomes(after)

    return act


def _worked(
    name: str, label: str | tuple[str, ...], after: Scene, prepare: Step, act: Step | None = None, **settings: Any
) -> Scenario:
    """Tasks are there, a worker comes and does them; only calls of one kind are met."""
    labels = (label,) if isinstance(label, str) else label
    act = act or _work(after)
    return Scenario(
        name, labels, act, after, always_done, prepare, in_order=False, only=labels, tries_again=True, **settings
    )


# A worker that stops with a handler that does not end.


async def _stop_while_running(stage: Stage) -> None:
    async with stage.worker(stage.app, shutdown_timeout=0.02):
        await until(lambda: stage.attempts)
    stage.go_on.set()


async def _run_elsewhere(stage: Stage) -> None:
    await stage.enter(stage.worker(stage.direct))


# A worker beside one that has died.

_DEAD_LEASE = 1.2
_SHORT_LEASE = 0.6


async def _taken_by_a_dead_worker(stage: Stage) -> None:
    await _enqueued("lost")(stage)
    store = Store(connect(stage.server.url))
    assert (await Work(store.redis, "dead", lease_ms=round(_DEAD_LEASE * 1000)).dequeue("q", 1)).rows
    await store.close()
    stage.notes["losses"] = stage.count_losses


RECOVERED = Scene({"a": (2,)}, {}, 2, 1, {"losses": 1})


async def _recover(stage: Stage) -> None:
    """A claim that is not settled would last for longer than this test."""
    with patch.object(recoverer, "CLAIM_MS", 60_000):
        await _work(RECOVERED, lease=_SHORT_LEASE)(stage)


async def _lease_is_over(stage: Stage) -> bool:
    """The dead worker's lease has ended, so that the next sweep claims its task."""
    return await _is_past(stage, 1000 * (await stage.redis.zscore(keys.lease("q"), "a") or math.inf))


# A handler that runs for longer than a lease.

_RENEWED_LEASE = 2.4


async def _run_longer_than_a_lease(stage: Stage) -> None:
    async with stage.worker(stage.app, lease=_RENEWED_LEASE):
        await until(lambda: stage.attempts)
        await until(lambda: stage.proxy.happened or stage.proxy.fault is None)
        await pause(_RENEWED_LEASE * 1.3, proves="nobody else runs what a living worker has")
        assert stage.attempts == {"a": [1]}
        stage.go_on.set()
        await stage.becomes(RAN)


async def _report(stage: Stage) -> None:
    async with stage.worker(stage.app):

        async def reported() -> bool:
            progress = (await stage.direct.handle("a", queue="q").status()).progress
            return progress is not None and progress.share == 0.5

        await until(reported, seconds=5.0, what="the handler's report")
        stage.go_on.set()
        await stage.becomes(RAN)


CANCELLED = Scene({"a": (1,)}, {"a": ("archived", 0)}, processed=1)


async def _cancel_while_running(stage: Stage) -> None:
    async with stage.worker(stage.app):
        await until(lambda: stage.attempts)
        await until(lambda: "subscribe" in stage.proxy.calls)
        await stage.direct.handle("a", queue="q").cancel()
        await stage.becomes(CANCELLED)


async def _group_of_two(stage: Stage) -> None:
    stage.aggregate(stage.app, size=2)
    await _enqueued("plain", "a", "b", group="g")(stage)


async def _is_due(stage: Stage) -> bool:
    """A task is due, so that the next look forwards it."""
    return await _is_past(stage, await stage.redis.zscore(keys.due("q"), "a") or math.inf)


async def _is_past(stage: Stage, instant_ms: float) -> bool:
    """Roles come at the very instant, as well as they know it: who is early by so little waits, or the server would
    find it past when the call gets there."""
    seconds, micros = await stage.redis.time()
    left = instant_ms / 1000 - seconds - micros / 1_000_000
    if 0 < left < 0.04:
        await asyncio.sleep(left + 0.001)
    return left < 0.04


async def _schedule_while_idle(stage: Stage) -> None:
    async with stage.worker(stage.app):
        await until(lambda: "blmove" in stage.proxy.calls)
        await _enqueued("plain", delay=0.1)(stage)
        await stage.becomes(RAN)


async def _enqueue_while_idle(stage: Stage) -> None:
    async with stage.worker(stage.app):
        await until(lambda: "blmove" in stage.proxy.calls)
        await _enqueued("plain")(stage)
        await stage.becomes(RAN, 25.0)  # a wait that nothing answers is given up after 10 s


async def _enqueue_unannounced(stage: Stage) -> None:
    async with stage.worker(stage.app):
        await until(lambda: "blmove" in stage.proxy.calls)
        await stage.redis.delete(keys.idle("q"))
        await _enqueued("plain")(stage)
        await stage.becomes(RAN, 25.0)


async def _be_told_without_a_free_slot(stage: Stage) -> None:
    async with stage.worker(stage.app, concurrency=1) as worker:
        await until(lambda: stage.attempts)
        worker._roles.processor.found("q")
        await until(lambda: "task-wake" in stage.proxy.calls)
        stage.go_on.set()
        await stage.becomes(RAN)


async def _no_step(stage: Stage) -> None:
    pass


_THREE = Scene(dict.fromkeys("abc", (1,)), processed=3)
WORKERS: list[Scenario] = [
    Scenario(
        "worker",
        (
            *(
                "setname",
                "setname",
                "setname",
                "setname",
                "setname",
                "time",
                "info",
                "config",
                "config",
                "sadd",
                "hgetall",
                "lrange",
            ),
            *(
                "smembers",
                "smembers",
                "subscribe",
                "subscribe",
                "subscribe",
                "set",
                "task-dequeue",
                "task-forward",
                "lease-recover",
            ),
            *(
                "keep-expire",
                "presence-beat",
                "presence-look",
                "task-done",
                "blmove",
                "zrem",
                "zrange",
                "presence-leave",
            ),
            "stats-record",
        ),
        _work(RAN),
        RAN,
        starting("time", "info", "sadd", "hgetall"),
        _enqueued("plain"),
        before=WAITS,
        in_order=False,
    ),
    _worked("dequeue-one", "task-dequeue", _THREE, _enqueued("plain", "a", "b", "c")),
    Scenario(
        "dequeue-several",
        ("task-dequeue",) * 3,
        _work(_THREE, ["q", "r", "s"]),
        _THREE,
        always_done,
        _enqueued("plain", "a", "b", "c", queues=("q", "r", "s")),
        in_order=False,
        only=("task-dequeue",),
    ),
    _worked("idle", "blmove", RAN, _no_step, _enqueue_while_idle),
    _worked("idle-not-woken", "lindex", RAN, _no_step, _enqueue_unannounced),
    _worked(
        "idle-in-order",
        "task-idle",
        RAN,
        _enqueued("plain", queues=("e",)),
        _work(RAN, ["a", "b", "c", "d", "e"], strict=True),
    ),
    _worked("pass-on", "task-wake", RAN, _enqueued("wait"), _be_told_without_a_free_slot),
    _worked("done", "task-done", RAN, _enqueued("plain")),
    _worked("complete", "task-complete", Scene({"a": (1,)}, {"a": COMPLETED}, 1), _enqueued("answer")),
    _worked("retry", "task-retry", Scene({"a": (1, 2)}, {}, 2, 1), _enqueued("fail_once")),
    _worked("archive", "task-archive", Scene({"a": (1,)}, {"a": ("archived", 0)}, 1, 1), _enqueued("fail")),
    _worked(
        "requeue",
        "task-requeue",
        Scene({"a": (1, 1)}, {}, 1),
        _enqueued("wait"),
        _stop_while_running,
        finish=_run_elsewhere,
    ),
    _worked("forward", "task-forward", RAN, _no_step, _schedule_while_idle, when=_is_due),
    _worked("recover", "lease-recover", RECOVERED, _taken_by_a_dead_worker, _recover, when=_lease_is_over),
    _worked("recover-settle", "task-retry", RECOVERED, _taken_by_a_dead_worker, _recover),
    _worked("extend", "lease-extend", RAN, _enqueued("wait"), _run_longer_than_a_lease),
    _worked("progress", "result-progress", RAN, _enqueued("report"), _report),
    _worked("cancel-running", "hget", CANCELLED, _enqueued("wait"), _cancel_while_running),
    _worked(
        "aggregate",
        ("group-reclaim", "group-check", "group-read", "group-aggregate"),
        Scene({"group a b": (1,)}, {}, 1),
        _group_of_two,
    ),
]
