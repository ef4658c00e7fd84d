"""Durable tasks: steps, waits, and events for them."""

from __future__ import annotations

from tests.faults.expectations import always_done
from tests.faults.scenario import Expect, Scenario, Site
from tests.faults.stage import Scene, Stage
from tests.support.faults import OOM, Fault
from tests.support.waiting import until

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


def _emitting(site: Site, fault: Fault) -> Expect:
    """An emit that raises has kept nothing, and one that returns has kept the event: whoever waits finds it at the next
    look, if it cannot be woken. The server refuses a new event if its memory is full."""
    return Expect.TOLD if fault is OOM and site.label == "event-emit" else Expect.DONE


WORKER_CALLS = ("durable-open", "durable-step", "durable-wait", "task-park", "event-listen")
CHILD_CALLS = (
    "exists",
    "durable-spawn+task-enqueue",
    "lpop",
    "durable-join",
    "durable-forget",
    "unlink",
)
DURABLE = [
    *[
        Scenario(
            f"durable/{label}",
            (label,),
            _fan_out,
            GATHERED,
            always_done,
            _prepare_parent,
            in_order=False,
            only=(label,),
            tries_again=True,
        )
        for label in CHILD_CALLS
    ],
    *[
        Scenario(
            f"durable/{label}",
            (label,),
            _run,
            AFTER,
            always_done,
            _prepare,
            in_order=False,
            only=(label,),
            tries_again=True,
        )
        for label in WORKER_CALLS
    ],
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
