"""Leases of a worker process that lives but does not move: C code that holds the GIL stops all of its threads, also the
one that renews them. Its supervisor does that for it, as long as its tasks have time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veredus.model.message import deadline_of
from veredus.store.leases import Holding, Owned
from veredus.store.store import Store
from veredus.wire import holding
from veredus.wire.messages import UndecodableMessage, decode_task
from veredus.worker.config import WorkerConfig
from veredus.worker.shared_beat import Beat, entry_of

LONGEST_CALL = 3.0
"""Seconds for which the supervisor waits for Redis: it has other children too."""


@dataclass(slots=True)
class Kept:
    tasks: list[str] = field(default_factory=list)
    """What the process holds, for people."""
    until: float = -math.inf
    """When the last of them will have had all its time, on the monotonic clock."""


async def keep_leases(app: Any, config: WorkerConfig, queues: Sequence[str], worker_id: str, beat: Beat) -> Kept:
    """Renew what a process still holds, never past the deadline and the grace of each task. Redis is asked what that
    is: a task that was taken after the last beat is known there only. Each renewal holds only if the task still is the
    worker's; should it move again meanwhile, or die, nothing is spoilt."""
    store = Store(app.open_redis("veredus-supervisor"))
    kept, holdings = Kept(), dict[str, list[Holding]]()
    try:
        async with asyncio.timeout(LONGEST_CALL):
            wall, owned = await store.leases.owned(queues, holding.owner(worker_id, ""))
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
    """The task's type, and when its deadline and grace will have passed on the monotonic clock, which the server's is
    `ahead` of. A handler that began after the last beat did so before the next one, which never came."""
    try:
        message = decode_task(one.message)
    except UndecodableMessage:
        return "undecodable", -math.inf
    known = beat.ends.get(entry_of(one.queue, one.task_id), math.inf)
    if known < math.inf:
        return message.type, known
    return message.type, deadline_of(message, beat.at + config.beat + ahead) - ahead + config.deadline_grace


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped this process (known on Linux only): that is nothing to wait for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False
