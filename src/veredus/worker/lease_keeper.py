"""Renews the leases of a frozen worker process from its supervisor, until the deadlines of its tasks.

C code that holds the GIL stops all threads of a process, including the heartbeater."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veredus.model.message import deadline_of
from veredus.store.store import Store
from veredus.store.tasks.leases import Holding, Owned
from veredus.wire import lease_owner
from veredus.wire.messages import UndecodableMessage, decode_task
from veredus.worker.config import WorkerConfig
from veredus.worker.shared_beat import Beat, entry_of

LONGEST_CALL = 3.0
"""Seconds that the supervisor waits for Redis. It has other children too."""


@dataclass(slots=True)
class KeptLeases:
    """The leases of one process."""

    tasks: list[str] = field(default_factory=list)
    """Its tasks, as text for the log."""
    until: float = -math.inf
    """The latest deadline including grace, on the monotonic clock."""


async def keep_leases(app: Any, config: WorkerConfig, queues: Sequence[str], worker_id: str, beat: Beat) -> KeptLeases:
    """Renew the leases of a process, never past the deadline and grace of each task. Its tasks are read from Redis,
    because those dequeued after the last beat are known only there. A renewal takes effect only if the worker still
    owns the task, so it is safe if the process runs again or dies during the call."""
    store = Store(app.open_redis("veredus-supervisor"))
    kept, holdings = KeptLeases(), dict[str, list[Holding]]()
    try:
        async with asyncio.timeout(LONGEST_CALL):
            wall, owned = await store.leases.owned(queues, lease_owner.owner(worker_id, ""))
            now = time.monotonic()
            for one in owned:
                kind, ends_at = _end(one, beat, config, wall - now)
                kept.tasks.append(f"{one.task_id} ({kind})")
                kept.until = max(kept.until, ends_at)
                seconds = min(config.lease, ends_at - now)
                if seconds > 0:
                    lease = Holding(one.task_id, one.owner, round(seconds * 1000))
                    holdings.setdefault(one.queue, []).append(lease)
            for extension in (await store.leases.extend(holdings)).values() if holdings else ():
                if isinstance(extension, BaseException):
                    raise extension
    finally:
        await store.close()
    return kept


def _end(one: Owned, beat: Beat, config: WorkerConfig, ahead: float) -> tuple[str, float]:
    """The task's type, and the end of its deadline and grace on the monotonic clock. `ahead` is the server's time minus
    the monotonic time. A handler that is not in the last beat began before the next one would have come."""
    try:
        message = decode_task(one.message)
    except UndecodableMessage:
        return "undecodable", -math.inf
    known = beat.ends.get(entry_of(one.queue, one.task_id), math.inf)
    if known < math.inf:
        return message.type, known
    return message.type, deadline_of(message, beat.at + config.beat + ahead) - ahead + config.deadline_grace


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped this process. Detected on Linux only."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False
