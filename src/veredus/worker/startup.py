"""The start of a worker: checks the server, then logs what the worker serves and what looks like a mistake."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from veredus.clock import ServerClock
from veredus.errors import ConfigError
from veredus.model.pools import POOLS
from veredus.store.store import Store, warn_of_eviction, when_ready
from veredus.worker.config import WorkerConfig

if TYPE_CHECKING:
    from veredus.app import App

logger = logging.getLogger("veredus.worker")

OLDEST_REDIS = (6, 2)


async def check_server(store: Store, clock: ServerClock) -> None:
    """Set the clock. Raises ConfigError for a server that is too old; warns about one that may evict tasks."""
    # Before the first task is taken: with a wrong clock, deadlines would seem to have passed.
    await when_ready(lambda: store.set_clock(clock))
    info = (await when_ready(lambda: store.redis.command("INFO", "server", key=""))).decode(errors="replace")
    version = next((line.split(":")[1] for line in info.splitlines() if line.startswith("redis_version:")), "")
    numbers = tuple(int(part) for part in version.strip().split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST_REDIS:
        raise ConfigError("redis server", version.strip(), "Redis 6.2 or newer, or Valkey")
    await warn_of_eviction(store)


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
    """Reasons why tasks may wait forever."""
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
