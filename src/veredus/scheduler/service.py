"""Service: runs a scheduler without a worker, in the foreground with signals or inside your own event loop."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Protocol, Self

from veredus.client.client import Client
from veredus.errors import ConfigError
from veredus.model.checks import seconds
from veredus.process.restarts import Restarts
from veredus.process.signals import StopSignals, done_unless, stop_signals
from veredus.scheduler.entries import Book
from veredus.scheduler.scheduler import BEAT, LEASE, Scheduler
from veredus.store.connection.redis import Redis
from veredus.store.store import Store, when_ready

logger = logging.getLogger("veredus.scheduler")


class Owner(Protocol):
    """The parts of an app that a scheduler needs."""

    max_payload: int
    schedules: Book

    def open_redis(self, name: str = ...) -> Redis: ...

    def schedule_scope(self) -> str: ...


class Service:
    """`app.scheduler().run()` blocks until a signal; `async with app.scheduler():` runs beside your own code."""

    def __init__(self, app: Owner, *, lease: float = LEASE, beat: float = BEAT) -> None:
        if not app.schedules:
            raise ConfigError("app", app, "an app with schedules: declare some with @app.cron or app.schedule(...)")
        self._app = app
        self._lease = seconds("lease", lease)
        self._beat = seconds("beat", beat)
        self._store: Store | None = None
        self._task: asyncio.Task[None] | None = None
        self.scheduler: Scheduler | None = None
        self._is_stopping = False

    def run(self) -> int:
        """Until SIGTERM or SIGINT; returns the exit code. Raises StoreError when Redis cannot be reached."""
        with stop_signals() as signals:
            return asyncio.run(self._main(signals))

    async def _main(self, signals: StopSignals) -> int:
        wanted = asyncio.Event()
        signals.notify_loop(wanted.set)
        try:
            await done_unless(wanted, self.start())
            await wanted.wait()
        finally:
            await self.stop()
        return 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        store = Store(self._app.open_redis(f"veredus-scheduler-{uuid.uuid4().hex[:8]}"))
        try:
            await when_ready(store.ping)
        except BaseException:
            await store.close()
            raise
        self._store = store
        client = Client(store, max_payload=self._app.max_payload)
        restarts = Restarts()
        self.scheduler = Scheduler(
            client,
            self._app.schedules,
            self._app.schedule_scope(),
            lease=self._lease,
            beat=self._beat,
            restarts=restarts,
        )
        running = restarts.keep("scheduler", self.scheduler.run, is_over=lambda: self._is_stopping)
        self._task = asyncio.create_task(running, name="veredus-scheduler")
        logger.info("scheduler %s is ready on %s", self.scheduler.name, store.redis.where())

    async def stop(self) -> None:
        if self.scheduler is not None and self._task is not None:
            self._is_stopping = True
            self.scheduler.stop()
            _, unfinished = await asyncio.wait([self._task], timeout=5.0)
            for late in unfinished:
                late.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._store is not None:
            await self._store.close()
