"""Live updates: reads the topics of open pages repeatedly and sends changes as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from veredus.clock import SYSTEM
from veredus.dashboard.answers import described, dumps
from veredus.dashboard.backend import Backend
from veredus.dashboard.forms import query_of
from veredus.dashboard.read_routes import Reading
from veredus.errors import ConfigError, VeredusError

logger = logging.getLogger("veredus.dashboard")

MOST_TOPICS = 12
MOST_STREAMS = 200
BEAT = 10.0
"""Seconds without a change after which a comment is sent, so that proxies keep the connection open."""


class Topic:
    """One address that pages watch. It is read once per round, however many pages watch it."""

    def __init__(self, name: str, reading: Reading, query: str) -> None:
        self.name = name
        self.reading = reading
        self.form = query_of(query, reading.parameters)
        self.last = ""
        self.due = 0.0
        self.watchers = 0
        self._asking = asyncio.Lock()

    async def read(self, backend: Backend, views: bool) -> str:
        """The current message: read now, or just read for another stream."""
        async with self._asking:
            now = SYSTEM.monotonic()
            if now >= self.due:
                message: dict[str, Any] = {"of": self.name}
                try:
                    message["value"] = await self.reading.read(backend.opened_for(views), self.form)
                except VeredusError as exc:
                    status, error = described(exc)
                    message["error"] = {"status": status, **error}
                except Exception:  # a bug: it is logged, and the stream goes on
                    logger.exception("the dashboard failed at %s", self.name)
                    message["error"] = {"status": 500, "error": "failed", "message": "the server's log has the details"}
                self.last = dumps(message)
                # Count from the end of the read, so that a slow server still gets a pause.
                self.due = SYSTEM.monotonic() + self.reading.pace * backend.config.refresh
            return self.last


class Live:
    """Viewers have one of their own: what is read for others has payloads."""

    def __init__(self, backend: Backend, readings: Mapping[str, Reading], *, views: bool = False) -> None:
        self._backend = backend
        self._views = views
        self._readings = readings
        self._topics: dict[str, Topic] = {}
        self._streams = 0

    def topics(self, wanted: list[str]) -> list[Topic]:
        """Topics by their addresses, such as `overview` or `tasks?queue=mail&state=retry`."""
        names = list(dict.fromkeys(wanted))
        if not 1 <= len(names) <= MOST_TOPICS:
            raise ConfigError("of", f"{len(names)} addresses", f"from 1 to {MOST_TOPICS}")
        if self._streams >= MOST_STREAMS:
            raise ConfigError("of", "one more stream", f"at most {MOST_STREAMS} streams at once")
        found = []
        for name in names:
            address, _, query = name.partition("?")
            if address not in self._readings:
                raise ConfigError("of", address, f"one of {', '.join(self._readings)}", known=self._readings)
            found.append(self._topics.get(name) or Topic(name, self._readings[address], query))
        return found

    async def stream(self, topics: list[Topic]) -> AsyncGenerator[bytes, None]:
        """Send every topic once, then each change."""
        self._streams += 1
        for position, topic in enumerate(topics):
            topics[position] = topic = self._topics.setdefault(topic.name, topic)
            topic.watchers += 1
        sent: dict[str, str] = {}
        pause = min(topic.reading.pace for topic in topics) * self._backend.config.refresh
        quiet_since = SYSTEM.monotonic()
        try:
            yield b"retry: 1000\n\n"
            while not self._backend.stopping:
                for topic in topics:
                    news = await topic.read(self._backend, self._views)
                    if sent.get(topic.name) != news:
                        sent[topic.name] = news
                        quiet_since = SYSTEM.monotonic()
                        yield f"data: {news}\n\n".encode()
                if SYSTEM.monotonic() - quiet_since > BEAT:
                    quiet_since = SYSTEM.monotonic()
                    yield b": still here\n\n"
                await asyncio.sleep(pause)
        finally:
            self._streams -= 1
            for topic in topics:
                topic.watchers -= 1
                if not topic.watchers:
                    self._topics.pop(topic.name, None)
