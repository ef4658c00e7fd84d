"""Where tests run: an empty database of a real server, whose scripts get the test's time."""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from veredus import embedded
from veredus.clock import Clock
from veredus.errors import ConfigError
from veredus.store.connection.address import parse_url
from veredus.store.connection.connection import Argument, Connection
from veredus.store.connection.redis import Redis, ScriptCall
from veredus.store.connection.scripts import Script
from veredus.store.store import connect
from veredus.testing.clock import ManualClock

LINGER = 20.0
"""Seconds that the server stays after the last test, if nothing stops it."""
DATABASES = 16
_taken: set[int] = set()

# Nothing may depend on what is not under the test's control: what expires by the server's clock ages with the test's.
_AGE = """
local gone = 0
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 and left <= tonumber(ARGV[1]) then
    redis.call('DEL', key)
    gone = gone + 1
  elseif left >= 0 then
    redis.call('PEXPIRE', key, left - tonumber(ARGV[1]))
  end
end
return gone
"""


class TestStage:
    """One database, one clock. What an app opens while it is on this stage is opened here."""

    def __init__(self, clock: ManualClock, url: str | None) -> None:
        self.clock: Clock = clock
        self._manual = clock
        self._given = url
        self._url = ""
        self._database: int | None = None
        self._redis: Redis | None = None
        self.listener: Callable[[dict[str, Any]], None] | None = None
        """Receives what handlers' processes report."""
        if url is not None and parse_url(url).kind == "cluster":
            raise ConfigError("url", url, "a single server: the test empties its database")

    def open_redis(self, name: str) -> Redis:
        return TimedRedis(connect(self._url, name=name), self._manual)

    def describe(self) -> dict[str, Any]:
        return {"url": self._url, "now_ms": self._manual.now_ms}

    def heard(self, fact: dict[str, Any]) -> None:
        if self.listener is not None:
            self.listener(fact)

    async def open(self) -> None:
        """Find an empty database; that of a given server must be empty, because it is emptied at the end."""
        if self._given is not None:
            self._url = self._given
        else:
            server = await asyncio.to_thread(_server)
            self._database = _take_database()
            self._url = f"{server}?db={self._database}"
        redis = self._redis = connect(self._url)
        try:
            if self._given is None:
                await redis.command("FLUSHDB", key="")
            elif await redis.command("DBSIZE", key=""):
                raise ConfigError("url", self._given, "an empty database: it is emptied at the end of the test")
        except BaseException:
            await redis.close()
            self._give_back()
            raise

    async def close(self) -> None:
        assert self._redis is not None
        try:
            await self._redis.command("FLUSHDB", key="")
        finally:
            await self._redis.close()
            self._give_back()

    def _give_back(self) -> None:
        if self._database is not None:
            _taken.discard(self._database)
            self._database = None

    async def age(self, ms: int) -> None:
        """Let time pass for keys that would have expired on the server since: locks, results, counters."""
        assert self._redis is not None
        await self._redis.command("EVAL", _AGE, 0, ms, key="")


class _Timed(Protocol):
    @property
    def now_ms(self) -> int | None: ...


class TimedRedis:
    """A Redis whose scripts get the time of a clock; while that has none, the time of the server."""

    def __init__(self, inner: Redis, clock: _Timed) -> None:
        self.address = inner.address
        self._inner = inner
        self._clock = clock

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        return await self._inner.run(script, keys, self._timed(args))

    async def run_each(self, calls: Sequence[ScriptCall]) -> list[Any]:
        timed = [ScriptCall(call.script, call.keys, self._timed(call.args)) for call in calls]
        return await self._inner.run_each(timed)

    async def command(self, *args: Argument, key: str) -> Any:
        if args == ("TIME",) and self._clock.now_ms is not None:
            return [self._clock.now_ms // 1000, self._clock.now_ms % 1000 * 1000]
        return await self._inner.command(*args, key=key)

    async def command_each(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        return await self._inner.command_each(commands)

    async def open(self, key: str) -> Connection:
        return await self._inner.open(key)

    async def be_connected(self, key: str) -> None:
        await self._inner.be_connected(key)

    def where(self) -> str:
        return self._inner.where()

    async def close(self) -> None:
        await self._inner.close()

    def _timed(self, args: Sequence[Argument]) -> Sequence[Argument]:
        return args if self._clock.now_ms is None else [*args, self._clock.now_ms]


def server_url() -> str:
    """The private server of this process, started when first asked for."""
    return _server()


@functools.cache
def _folder(pid: int) -> str:
    folder = tempfile.mkdtemp(prefix="veredus-test-")
    atexit.register(_remove, folder, pid)
    return folder


def _server() -> str:
    return embedded.ensure(_folder(os.getpid()), linger=LINGER).url


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has the same exit functions
        embedded.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _take_database() -> int:
    for number in range(DATABASES):
        if number not in _taken:
            _taken.add(number)
            return number
    raise ConfigError("app.test()", f"{DATABASES} at once", f"up to {DATABASES} at once in one process")
