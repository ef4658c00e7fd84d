"""The inspector and the store modules that the routes use, opened on first use."""

from __future__ import annotations

import asyncio
import copy
import functools
import re
from typing import TYPE_CHECKING, Protocol

from veredus.client.notifier import Notifier
from veredus.dashboard.config import DashboardConfig
from veredus.dashboard.enqueueing import Producer
from veredus.dashboard.jobs import Jobs
from veredus.dashboard.recent import Recent
from veredus.errors import ConfigError
from veredus.inspector.inspector import Inspector
from veredus.model.archive import ArchiveLimits
from veredus.model.redaction import Redact, Sensitive
from veredus.store.connection.address import parse_url
from veredus.store.inspect.details import Details
from veredus.store.inspect.tasks import Tasks
from veredus.store.sessions.gateway_nodes import GatewayNodes
from veredus.store.sessions.outbox import Outbox
from veredus.store.sessions.session_partitions import SessionPartitions
from veredus.store.sessions.sessions import Sessions
from veredus.store.store import Store, connect

if TYPE_CHECKING:
    from veredus.store.connection.redis import Redis

NAME = "veredus dashboard"
HIDDEN = "(hidden)"


class Source(Protocol):
    """An App, or anything else that can open a connection to Redis."""

    archive: ArchiveLimits
    redact: Redact | None

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
        """Opens the connection on first use. Each event loop gets its own."""
        loop = asyncio.get_running_loop()
        if self._opened is None or self._opened.loop is not loop:
            source = self._source
            redis = connect(source, name=NAME) if isinstance(source, str) else source.open_redis(NAME)
            self._opened = Opened(loop, redis, source)
        return self._opened

    def opened_for(self, views: bool) -> Opened:
        return self.opened.hiding if views else self.opened

    async def close(self) -> None:
        """Stop jobs and disconnect. The next use connects again."""
        self.stopping = True
        opened, self._opened = self._opened, None
        if opened is not None and opened.loop is asyncio.get_running_loop():
            await opened.jobs.close()
            await opened.redis.close()
        self.stopping = False


class Opened:
    """One connection and the objects that use it."""

    hides = False
    """Whether payloads and results are hidden."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        redis: Redis,
        source: Source | str,
    ) -> None:
        archive = None if isinstance(source, str) else source.archive
        redact = None if isinstance(source, str) else source.redact
        self.loop = loop
        self.redis = redis
        self.inspector = Inspector(redis, archive=archive, redact=redact)
        self._redact = redact
        self.tasks = Tasks(redis)
        self.details = Details(redis)
        self.nodes = GatewayNodes(redis)
        partitions = SessionPartitions(redis)
        self.sessions = Sessions(redis, partitions)
        self.outbox = Outbox(redis, partitions)
        self.notifier = Notifier(Store(redis))
        self.producer = Producer(redis, source)
        self.jobs = Jobs()
        self.recent = Recent()

    @functools.cached_property
    def hiding(self) -> Opened:
        """The same for viewers, who see neither payloads nor results."""
        other = copy.copy(self)
        other.hides = True
        other.inspector = Inspector(self.redis, redact=functools.partial(_hidden, self._redact))
        return other


def _hidden(redact: Redact | None, text: str, what: Sensitive) -> str:
    if what.kind in ("payload", "result"):
        return HIDDEN
    text = text if redact is None else redact(text, what)
    if what.kind == "traceback" and _MISFIT.search(text):
        return HIDDEN
    return _MISFIT.sub(rf"\1 {HIDDEN}", text)


_MISFIT = re.compile(r"(does not fit:).*", re.DOTALL)
"""Such errors may quote what does not fit: a value of the payload."""
