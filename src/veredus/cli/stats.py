"""`veredus stats`: all queues at a glance."""

from __future__ import annotations

import click

from veredus.cli.common import STATES, console, echo_json, inspecting, json_option, show
from veredus.inspector.inspector import Inspector

_REDIS = (
    "redis_version",
    "valkey_version",
    "uptime_in_days",
    "connected_clients",
    "used_memory_human",
    "used_memory_peak_human",
)


@click.command()
@json_option
@inspecting
async def stats(inspector: Inspector, as_json: bool) -> None:
    """How many tasks are in which state, per queue and in all.

    \b
    Examples:
      veredus stats
      veredus stats --json | jq .aggregate
    """
    queues = await inspector.stats()
    info = await inspector.redis_info()
    total = {state: sum(getattr(queue, state) for queue in queues) for state in STATES}
    total |= {name: sum(getattr(queue, name) for queue in queues) for name in ("processed", "failed")}
    if as_json:
        total["timestamp"] = max((queue.as_dict()["timestamp"] for queue in queues), default=None)
        redis = {name: info[name] for name in _REDIS if name in info}
        echo_json({"aggregate": total, "queues": [queue.as_dict() for queue in queues], "redis": redis})
        return
    columns = [("queue", lambda q: q.queue + (" (paused)" if q.paused else ""))]
    columns += [(state, lambda q, state=state: f"{getattr(q, state):,}") for state in STATES]  # type: ignore[misc]
    columns += [
        ("latency", lambda q: f"{q.latency_ns / 1e6:,.0f} ms"),
        ("today", lambda q: f"{q.processed:,}"),
        ("failed", lambda q: f"{q.failed:,}"),
    ]
    show(queues, columns, as_json=False, empty="No queue yet. Enqueue a task, or try: veredus demo")
    out = console()
    counts = ", ".join(f"{number:,} {state}" for state, number in total.items() if number)
    out.print(f"in all  {counts or 'no tasks'}")
    out.print("server  " + ", ".join(f"{name} {info[name]}" for name in _REDIS if name in info))
