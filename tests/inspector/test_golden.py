"""Every state that a real Asynq left behind: our Inspector shows exactly what Go's own Inspector showed."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from tests.inspector.support import load_dump
from tests.support import golden
from tests.support.servers import VALKEY_ONLY
from tests.support.timed import at
from veredus.inspector.inspector import Inspector
from veredus.store.store import Store

MOMENTARY = ("timestamp", "latency_ms", "memory_usage", "next_process_at")
STATES = ("active", "pending", "scheduled", "retry", "archived", "completed")


@pytest.mark.parametrize("name", golden.scenarios())
async def test_the_view_is_that_of_gos_inspector(name: str, store: Store, redis_client: Any) -> None:
    scenario = golden.load(name)
    await load_dump(redis_client, scenario["redis"])
    captured = int(scenario["redis"]["captured_at_unix_ns"]) // 1_000_000
    # At the moment of the capture, so that leases and records last as they did for Go.
    ours = await view(Inspector(at(store.redis, captured)), captured)
    assert _comparable(ours) == _comparable(scenario["go_inspector"])


async def view(inspector: Inspector, captured: int) -> dict[str, Any]:
    day = datetime.fromtimestamp(captured / 1000, UTC).date()
    entries = []
    for entry in await inspector.scheduler_entries():
        events = await inspector.scheduler_events(entry.id)
        entries.append(entry.as_dict() | {"events": [event.as_dict() for event in events]})
    return {
        "queues": await inspector.queues(),
        "by_queue": {queue: await _queue(inspector, queue, day) for queue in await inspector.queues()},
        "servers": [server.as_dict() for server in await inspector.servers()],
        "scheduler_entries": entries,
    }


async def _queue(inspector: Inspector, queue: str, day: date) -> dict[str, Any]:
    groups = {}
    for group in await inspector.groups(queue):
        tasks = await inspector.tasks(queue, "aggregating", group=group.group)
        groups[group.group] = {"size": group.size, "tasks": [task.as_dict() for task in tasks]}
    return {
        "info": (await inspector.queue(queue)).as_dict(),
        "history": [one.as_dict() for one in await inspector.history(queue, 3, until=day)],
        "groups": groups,
        "tasks": {state: [task.as_dict() for task in await inspector.tasks(queue, state)] for state in STATES},
    }


def _comparable(shown: Any) -> Any:
    if isinstance(shown, dict):
        kept = {name: _comparable(value) for name, value in shown.items() if name not in MOMENTARY}
        if "active_workers" in kept:
            kept["active_workers"] = sorted(kept["active_workers"], key=lambda worker: worker["task_id"])
        return kept
    return [_comparable(one) for one in shown] if isinstance(shown, list) else shown


@VALKEY_ONLY
@pytest.mark.parametrize("name", golden.scenarios())
async def test_single_tasks_look_as_in_the_list(name: str, store: Store, redis_client: Any) -> None:
    scenario = golden.load(name)
    await load_dump(redis_client, scenario["redis"])
    inspector = Inspector(at(store.redis, int(scenario["redis"]["captured_at_unix_ns"]) // 1_000_000))
    for queue in await inspector.queues():
        for state in STATES:
            for task in await inspector.tasks(queue, state):
                assert (await inspector.task(queue, task.id)).as_dict() == task.as_dict()
