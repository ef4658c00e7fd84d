"""What needs attention: held order keys, queues and types without workers, problems of the server."""

from __future__ import annotations

import asyncio
from typing import Any

from veredus.dashboard.backend import Opened
from veredus.dashboard.forms import Form
from veredus.dashboard.read_routes import Reading
from veredus.inspector.findings import BAD, OK, WARN, Finding
from veredus.inspector.health import examine_servers
from veredus.model.info import QueueInfo

MOST_KEYS = 1_000
"""Order keys of a queue that are looked at."""
MOST_QUEUES, MOST_PENDING = 50, 50
"""Queues, and pending tasks of each, in which types that no worker knows are looked for."""


async def flags(opened: Opened, form: Form) -> Any:
    inspector = opened.inspector
    queues, servers = await asyncio.gather(inspector.stats(), inspector.servers())
    served = {name for server in servers for name in server.queues}
    held = await asyncio.gather(*[inspector.held_keys(queue.queue, MOST_KEYS) for queue in queues])
    found = [one for queue in queues for one in _of_queue(queue, queue.queue in served)]
    for queue, names in zip(queues, held, strict=True):
        found += [_held(queue.queue, names)] if names else []
    pending = [queue.queue for queue in queues if queue.pending and queue.queue in served][:MOST_QUEUES]
    for unknown in await asyncio.gather(*[inspector.doctor.unserved_types(name, MOST_PENDING) for name in pending]):
        found += unknown
    found += [one for one in await examine_servers(inspector.doctor.checkups) if one.level != OK]
    return {"flags": [one.as_dict() for one in sorted(found, key=lambda one: one.level != BAD)]}


def _of_queue(queue: QueueInfo, is_served: bool) -> list[Finding]:
    waiting = queue.pending + queue.retry + queue.scheduled
    if is_served or not waiting:
        return []
    text = f"no worker serves queue {queue.queue!r}: {waiting:,} {'task waits' if waiting == 1 else 'tasks wait'}"
    return [Finding(kind="unserved", level=WARN, text=text, advice="start a worker for it", queue=queue.queue)]


def _held(queue: str, names: list[str]) -> Finding:
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    text = f"queue {queue!r}: archived tasks hold up order keys: {', '.join(names[:3])}{more}"
    advice = "run or delete the archived task, or release the key"
    return Finding(kind="held", level=WARN, text=text, advice=advice, queue=queue)


READINGS: dict[str, Reading] = {"flags": Reading(flags, (), 10)}
