"""Durable tasks: steps, waits, and events for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.faults.expectations import always_done
from tests.faults.scenario import Expect, Scenario, Site, Step
from tests.faults.stage import Scene, Stage
from tests.support.faults import OOM, Fault
from tests.support.servers import raw
from tests.support.waiting import until
from veredus.client.emitting import encode_event
from veredus.wire import keys

EFFECTS = ["first", "second"]
AFTER = Scene({"a": (1, 1, 1)}, processed=1, more={"effects": EFFECTS})
WAITS = Scene({"a": (1,)}, {"a": ("scheduled", 0)}, more={"effects": EFFECTS[:1]})


async def _prepare(stage: Stage) -> None:
    await stage.direct.tasks["durable"].using(task_id="a").enqueue("a")
    stage.notes["effects"] = stage.count_effects


async def _run(stage: Stage) -> None:
    """The worker reaches the server through the proxy."""
    async with stage.worker(stage.app):
        await until(stage.is_waiting)
        await stage.direct.emit("go")
        await stage.becomes(AFTER)


async def _finish(stage: Stage) -> None:
    async with stage.worker(stage.app):
        await stage.becomes(AFTER)


async def _prepare_waiting(stage: Stage) -> None:
    await _prepare(stage)
    await stage.enter(stage.worker(stage.direct))
    await until(stage.is_waiting)


async def _emit(stage: Stage) -> None:
    assert await stage.app.emit("go")


CHILDREN = ["x", "y"]
GATHERED = Scene({"a": (1, 1)}, processed=3, more={"effects": CHILDREN})


async def _prepare_parent(stage: Stage) -> None:
    await stage.direct.tasks["parent"].using(task_id="a").enqueue("a")
    stage.notes["effects"] = stage.count_effects


async def _fan_out(stage: Stage) -> None:
    async with stage.worker(stage.app):
        await stage.becomes(GATHERED)


async def _prepare_parent_of_another_queue(stage: Stage) -> None:
    """What its child returns is brought to it."""
    await stage.direct.tasks["parent_elsewhere"].using(task_id="a").enqueue("a")
    stage.notes["effects"] = stage.count_effects


async def _fan_out_elsewhere(stage: Stage) -> None:
    async with stage.worker(stage.app, ["q", "r"]):
        await stage.becomes(LOOKED)


def _emitting(site: Site, fault: Fault) -> Expect:
    """An emit that raises has kept nothing, and one that returns has kept the event: whoever waits finds it at the next
    look, if it cannot be woken. The server refuses a new event if its memory is full."""
    return Expect.TOLD if fault is OOM and site.label == "event-emit" else Expect.DONE


async def _is_fanned_out(stage: Stage) -> bool:
    """All children have ended, or are about to."""
    return len(stage.effects) == len(CHILDREN)


async def _prepare_looked_at(stage: Stage) -> None:
    """Whoever emitted the event has died before it woke anybody."""
    await _prepare(stage)
    async with stage.worker(stage.direct):
        await until(stage.is_waiting)
    await stage.redis.set(keys.event("go"), b"c" * 16 + encode_event("go", True))
    await _look_now(stage)


async def _look_now(stage: Stage) -> None:
    await stage.redis.zadd(keys.waits("q"), {"a": 1})


async def _prepare_long(stage: Stage) -> None:
    """It has kept more than is read in one call."""
    await _prepare(stage)
    async with stage.worker(stage.direct):
        await until(stage.is_waiting)
    await stage.redis.hset(keys.task("q", "a"), mapping={f"s:kept {n}": "+" for n in range(600)})


async def _prepare_child_that_tells_nobody(stage: Stage) -> None:
    """As a Go server does. The parent waits; its child is pending in a queue that nobody has served yet."""
    await stage.direct.tasks["parent_elsewhere"].using(task_id="a").enqueue("a")
    stage.notes["effects"] = stage.count_effects
    async with stage.worker(stage.direct):
        await until(lambda: _waits(stage, b"children "))
    (child,) = await stage.redis.lrange(keys.pending("r"), 0, -1)
    await stage.redis.hdel(keys.task("r", raw(child).decode()), "waited")


async def _waits(stage: Stage, kind: bytes) -> bool:
    return raw(await stage.redis.hget(keys.task("q", "a"), "waiting") or b"").startswith(kind)


async def _serve_both(stage: Stage) -> None:
    async with stage.worker(stage.app, ["q", "r"]):
        await until(lambda: stage.effects)
        await _look_now(stage)
        await stage.becomes(LOOKED)


async def _prepare_archived(stage: Stage) -> None:
    """A child has failed, and with it its parent; somebody runs the parent again."""
    await stage.direct.tasks["parent_of_failing"].using(task_id="a").enqueue("a")
    stage.notes["effects"] = stage.count_effects
    async with stage.worker(stage.direct):
        await until(lambda: stage.redis.zscore(keys.archived("q"), "a"))
    await stage.direct.inspector().run("q", "a")


async def _run_again(stage: Stage) -> None:
    async with stage.worker(stage.app):
        await stage.becomes(RUN_AGAIN)


async def _has_run(stage: Stage) -> bool:
    return bool(stage.effects)


async def _is_running_again(stage: Stage) -> bool:
    return len(stage.attempts["a"]) > 2


LOOKED = Scene({"a": (1, 1)}, processed=2, more={"effects": ["x"]})
RUN_AGAIN = Scene({"a": (1, 1, 1, 1)}, processed=4, failed=2, more={"effects": ["x", "x"]})
WORKER_CALLS = ("durable-open", "durable-step", "durable-wait", "task-park", "event-listen")
CHILD_CALLS = ("exists", "durable-spawn+task-enqueue", "durable-forget", "unlink")
RELAY_CALLS = ("lpop", "durable-join")
EVENT_LOOKS = ("durable-look", "event-listen", "durable-wake")
CHILD_LOOKS = ("hmget", "hkeys", "hget", "result-await", "durable-join")
AGAIN = ("durable-outcomes", "result-await", "inspect-run", "durable-retake")


def _met(
    label: str,
    act: Step,
    after: Scene,
    prepare: Step,
    name: str = "",
    when: Callable[[Stage], Awaitable[bool]] | None = None,
) -> Scenario:
    """Faults at the first call of this kind that is made on the way."""
    name = f"durable/{name}{label}"
    return Scenario(
        name, (label,), act, after, always_done, prepare, in_order=False, only=(label,), tries_again=True, when=when
    )


DURABLE = [
    *[_met(label, _fan_out, GATHERED, _prepare_parent) for label in CHILD_CALLS],
    *[_met(label, _fan_out_elsewhere, LOOKED, _prepare_parent_of_another_queue) for label in RELAY_CALLS],
    _met("durable-outcomes", _fan_out, GATHERED, _prepare_parent, when=_is_fanned_out),
    *[_met(label, _run, AFTER, _prepare) for label in WORKER_CALLS],
    _met("hscan", _run, AFTER, _prepare_long),
    *[_met(label, _finish, AFTER, _prepare_looked_at, "look/") for label in EVENT_LOOKS],
    *[
        _met(label, _serve_both, LOOKED, _prepare_child_that_tells_nobody, "look-at-child/", _has_run)
        for label in CHILD_LOOKS
    ],
    *[_met(label, _run_again, RUN_AGAIN, _prepare_archived, "again/", _is_running_again) for label in AGAIN],
    Scenario(
        "durable/emit",
        ("setname", "event-emit", "durable-wake", "event-ack"),
        _emit,
        AFTER,
        _emitting,
        _prepare_waiting,
        WAITS,
    ),
]
