"""What the routes ask: the inspector and parts of the store, opened on first use in the loop that asks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from veredus.client.notifier import Notifier
from veredus.dashboard.config import DashboardConfig
from veredus.dashboard.jobs import Jobs
from veredus.dashboard.recent import Recent
from veredus.errors import ConfigError
from veredus.inspector.inspector import Inspector
from veredus.model.archive import ArchiveLimits
from veredus.store.address import parse_url
from veredus.store.details import Details
from veredus.store.nodes import Nodes
from veredus.store.outbox import Outbox
from veredus.store.partitions import Partitions
from veredus.store.sessions import Sessions
from veredus.store.store import Store, connect
from veredus.store.tasks import Tasks

if TYPE_CHECKING:
    from veredus.store.redis import Redis

NAME = "veredus dashboard"


class Source(Protocol):
    """An App, or whatever else can open its Redis."""

    archive: ArchiveLimits

    def open_redis(self, name: str = ...) -> Redis: ...


class Backend:
    def __init__(self, source: Source | str, config: DashboardConfig) -> None:
        if isinstance(source, str):
            parse_url(source)
        elif not hasattr(source, "open_redis"):
            raise ConfigError("app_or_url", source, "an App, or the URL of a Redis")
        self.config = config
        self._source = source
        self._opened: Opened | None = None
        self.stopping = False

    @property
    def opened(self) -> Opened:
        """The connection belongs to one event loop; should another one ask, it gets its own."""
        loop = asyncio.get_running_loop()
        if self._opened is None or self._opened.loop is not loop:
            source = self._source
            redis = connect(source, name=NAME) if isinstance(source, str) else source.open_redis(NAME)
            archive = None if isinstance(source, str) else source.archive
            self._opened = Opened(loop, redis, archive)
        return self._opened

    async def close(self) -> None:
        """Stop what runs and let go of Redis; it opens again on use."""
        self.stopping = True
        opened, self._opened = self._opened, None
        if opened is not None and opened.loop is asyncio.get_running_loop():
            await opened.jobs.close()
            await opened.redis.close()
        self.stopping = False


class Opened:
    """One connection and all who use it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, redis: Redis, archive: ArchiveLimits | None) -> None:
        self.loop = loop
        self.redis = redis
        self.inspector = Inspector(redis, archive=archive)
        self.tasks = Tasks(redis)
        self.details = Details(redis)
        self.nodes = Nodes(redis)
        partitions = Partitions(redis)
        self.sessions = Sessions(redis, partitions)
        self.outbox = Outbox(redis, partitions)
        self.notifier = Notifier(Store(redis))
        self.jobs = Jobs()
        self.recent = Recent()
