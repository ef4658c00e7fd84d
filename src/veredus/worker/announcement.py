"""What a worker says when it has started: its queues, slots and tasks, and what looks like a mistake."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from veredus.errors import StoreError
from veredus.model.pools import POOLS
from veredus.store.store import Store
from veredus.worker.config import WorkerConfig

if TYPE_CHECKING:
    from veredus.app import App

logger = logging.getLogger("veredus.worker")


def announce(app: App, config: WorkerConfig, queues: Mapping[str, int], worker_id: str, where: str) -> None:
    logger.info(
        "worker %s serves %s with %d slots (%d for threads, %d for processes) on %s",
        worker_id[:8],
        ", ".join(f"{queue}={weight}" for queue, weight in queues.items()),
        config.concurrency,
        min(config.threads, config.concurrency),
        min(config.process_pool, config.concurrency),
        where,
    )
    tasks = {**app.tasks, **app.patterns}
    for pool in POOLS:
        names = sorted(name for name, task in tasks.items() if task.run_in == pool)
        if names:
            logger.info("worker %s runs in the %s: %s", worker_id[:8], _POOL_NAMES[pool], ", ".join(names))
    for warning in warnings(app, queues):
        logger.warning("%s", warning)


_POOL_NAMES = {"loop": "event loop", "thread": "thread pool", "process": "process pool"}


def warnings(app: App, queues: Mapping[str, int]) -> list[str]:
    """What would leave tasks waiting without a word."""
    if not app.tasks and not app.patterns and not app.aggregations:
        return [
            "this app has no tasks: import the modules that declare them before the worker starts, or check that "
            "MODULE:APP names the app that they use"
        ]
    named = app.served_queues()
    return [
        f"no task of this app names queue {queue}: only tasks that are sent there explicitly, such as with "
        f'using(queue="{queue}"), will be run from it. Queues that tasks name: {", ".join(named)}'
        for queue in queues
        if queue not in named
    ]


async def warn_of_eviction(store: Store) -> None:
    """A server that evicts keys when its memory is full loses tasks. Not everybody may read the configuration."""
    with contextlib.suppress(StoreError):
        policy = await store.redis.command("CONFIG", "GET", "maxmemory-policy", key="")
        if len(policy) == 2 and policy[1] != b"noeviction":
            logger.warning("maxmemory-policy is %s: the server may evict tasks; set noeviction", policy[1].decode())
