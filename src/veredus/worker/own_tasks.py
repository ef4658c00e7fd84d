"""Tasks that every worker serves besides those of its app: they begin with `veredus:`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from veredus.client import emitting
from veredus.client.task import Task
from veredus.client.task_batch import BATCH, unpack_call
from veredus.handlers.context import current
from veredus.handlers.mux import AnyTask
from veredus.model.durable import EVENT_TTL
from veredus.model.options import Options
from veredus.store.store import Store
from veredus.wire.payload import codec_for

if TYPE_CHECKING:
    from veredus.app import App

EMIT = "veredus:emit"


def own_tasks(app: App, store: Store) -> dict[str, AnyTask]:
    """By type. `veredus:emit` emits an event for a Go service, which enqueues `{"event": ..., "payload": ...}`."""

    async def emit(event: str, payload: Any = True, ttl: float = EVENT_TTL) -> bool:
        return await emitting.emit(store, event, payload, ttl)

    return {name: _task(app, name, function) for name, function in ((EMIT, emit), (BATCH, run_batch))}


async def run_batch(calls: list[list[Any]], then: list[Any] | None = None) -> Any:
    """`app.batch(...)`: wait for all calls, however they end; then run one more task and return its result."""
    job = current()
    await job.gather("batch", [unpack_call(call) for call in calls], return_errors=True)
    return None if then is None else await job.run(unpack_call(then), name="then")


def _task(app: App, name: str, function: Callable[..., Any]) -> AnyTask:
    return Task(app, function, name=name, codec=codec_for(function, "json"), options=Options())
