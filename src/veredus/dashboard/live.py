"""Pages without reloading: what they look at is read again and again; what changed is told as a server-sent event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from veredus.clock import SYSTEM
from veredus.dashboard.answers import described, dumps
from veredus.dashboard.backend import Backend
from veredus.dashboard.forms import query_of
from veredus.dashboard.reading import Reading
from veredus.errors import ConfigError, VeredusError

logger = logging.getLogger("veredus.dashboard")

MOST_TOPICS = 12
MOST_STREAMS = 200
BEAT = 10.0
"""Seconds without news after which a line is sent all the same, so that proxies and browsers keep the stream."""


class Topic:
    """One address that somebody watches; however many do, it is read once per round."""

    def __init__(self, name: str, reading: Reading, query: str) -> None:
        self.name = name
        self.reading = reading
        self.form = query_of(query, reading.parameters)
        self.said = ""
        self.due = 0.0
        self.watchers = 0
        self._asking = asyncio.Lock()

    async def look(self, backend: Backend) -> str:
        """What to tell about it: fresh, or what another watcher has just read."""
        async with self._asking:
            now = SYSTEM.monotonic()
            if now >= self.due:
                told: dict[str, Any] = {"of": self.name}
                try:
                    told["value"] = await self.reading.read(backend.opened, self.form)
                except VeredusError as exc:
                    status, error = described(exc)
                    told["error"] = {"status": status, **error}
                except Exception:
                    logger.exception("the dashboard failed at %s", self.name)
                    told["error"] = {"status": 500, "error": "failed", "message": "the server's log has the details"}
                self.said = dumps(told)
                # From the end of the reading: a server that is slow to answer is not asked without a pause.
                self.due = SYSTEM.monotonic() + self.reading.pace * backend.config.refresh
            return self.said


class Live:
    def __init__(self, backend: Backend, readings: Mapping[str, Reading]) -> None:
        self._backend = backend
        self._readings = readings
        self._topics: dict[str, Topic] = {}
        self._streams = 0

    def topics(self, wanted: list[str]) -> list[Topic]:
        """`overview`, `tasks?queue=mail&state=retry`: any address that can be read."""
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
        """Everything at first, then what changed."""
        self._streams += 1
        for position, topic in enumerate(topics):
            topics[position] = topic = self._topics.setdefault(topic.name, topic)
            topic.watchers += 1
        said: dict[str, str] = {}
        pause = min(topic.reading.pace for topic in topics) * self._backend.config.refresh
        quiet_since = SYSTEM.monotonic()
        try:
            yield b"retry: 1000\n\n"
            while not self._backend.stopping:
                for topic in topics:
                    news = await topic.look(self._backend)
                    if said.get(topic.name) != news:
                        said[topic.name] = news
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
