"""One fault at one exact call: a proxy that knows which command or script each request is.

`Fault` says what goes wrong, `Aim` at which call; `FaultProxy` lets it happen once and remembers that it did.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import redis.asyncio

import veredus.store
from tests.support.proxy import Proxy
from tests.support.resp import Frames, words
from veredus.store.connection.scripts import Script, with_insert
from veredus.store.tasks.children import SPAWN
from veredus.store.tasks.groups import AGGREGATE
from veredus.store.tasks.intake import ADD, ENQUEUE, ENQUEUE_BOUND, HOLDERS, REPLACE, ROOM, SCHEDULE
from veredus.store.tasks.schedules import TICK

SHORT_TIMEOUT, LONG_TIMEOUT = 0.5, 10.0
"""Seconds after which the connections under test give up: long, so that a busy machine is not taken for a fault, unless
the fault is that nothing comes."""
LATE = 2.2 * SHORT_TIMEOUT


@dataclass(frozen=True)
class Fault:
    """What goes wrong. The name says it all but for errors, whose text the server would send."""

    name: str
    error: bytes = b""
    then: Fault | None = None
    """What the next call of the same kind meets, which most often is the same one again."""

    @property
    def executed(self) -> bool:
        """Whether the server executes the call all the same."""
        return self.name.startswith("reply-")

    @property
    def breaks(self) -> bool:
        """Whether a connection breaks, or is given up, and a new one can be made."""
        return not self.error

    @property
    def timeout(self) -> float:
        """That of the connections which shall meet it."""
        return SHORT_TIMEOUT if self.name in ("silent", "reply-late", "request-late", "pause") else LONG_TIMEOUT

    @property
    def is_error(self) -> bool:
        return bool(self.error) and self.name != "max-clients"


REQUEST_LOST = Fault("request-lost")
REPLY_LOST = Fault("reply-lost")
REPLY_CUT = Fault("reply-cut")
SILENT = Fault("silent")
REPLY_LATE = Fault("reply-late")
REQUEST_LATE = Fault("request-late")
"""Executed when its caller has given up, and has perhaps sent it again."""
PAUSE = Fault("pause")
"""The server stands still for longer than its callers wait, on all connections; then it executes what has come."""
MAX_CLIENTS = Fault("max-clients", b"-ERR max number of clients reached\r\n")
OOM = Fault("OOM", b"-OOM command not allowed when used memory > 'maxmemory'.\r\n")
NOSCRIPT = Fault("NOSCRIPT", b"-NOSCRIPT No matching script. Please use EVAL.\r\n")
LOADING = Fault("LOADING", b"-LOADING Redis is loading the dataset in memory\r\n")
READONLY = Fault("READONLY", b"-READONLY You can't write against a read only replica.\r\n")
FAULTS = (
    REQUEST_LOST,
    REPLY_LOST,
    REPLY_CUT,
    SILENT,
    REPLY_LATE,
    MAX_CLIENTS,
    OOM,
    NOSCRIPT,
    READONLY,
    LOADING,
    Fault("BUSY", b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n"),
    Fault("MISCONF", b"-MISCONF Errors writing to the AOF file: No space left on device\r\n"),
    Fault("CLUSTERDOWN", b"-CLUSTERDOWN The cluster is down\r\n"),
)
STANDSTILLS = (REQUEST_LATE, PAUSE)
PAIRS = (
    Fault("reply-lost-twice", then=REPLY_LOST),
    Fault("reply-lost-then-OOM", then=OOM),
    Fault("reply-cut-then-LOADING", then=LOADING),
    Fault("request-lost-then-READONLY", then=READONLY),
)
"""For callers that try again: after the first one they cannot know what has happened, whatever the second one says."""


@dataclass
class Aim:
    """The nth call with this label; with `when`, only calls count for which it is true as they arrive."""

    label: str
    nth: int = 1
    when: Callable[[], Awaitable[bool]] | None = None
    seen: int = 0

    async def hits(self, label: str) -> bool:
        if label != self.label or (self.when is not None and not await self.when()):
            return False
        self.seen += 1
        return self.seen == self.nth


@dataclass
class _Link:
    """One connection: what is still unanswered, and what is to become of it."""

    writer: asyncio.StreamWriter
    server: asyncio.StreamWriter
    unanswered: deque[Fault | None] = field(default_factory=deque)
    all_answered: asyncio.Event = field(default_factory=asyncio.Event)
    silent: bool = False
    late_reply: asyncio.Event = field(default_factory=asyncio.Event)


class FaultProxy(Proxy):
    """Passes whole requests and replies on, and lets `fault` happen at the call that `aim` names."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.calls: list[str] = []
        """The labels of all calls in the order in which they came."""
        self.aim: Aim | None = None
        self.fault: Fault | None = None
        self.happened = False
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """Awaited between the server's answer and its loss: what others do before the caller can try again."""
        self._refuse_next = b""
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._late: list[asyncio.Task[None]] = []
        self._known: set[bytes] = set()
        self._loader = redis.asyncio.Redis(unix_socket_path=target)

    def let(self, fault: Fault, aim: Aim) -> None:
        self.fault, self.aim, self.happened = fault, aim, False

    def calm(self) -> None:
        """What is done from now on meets nothing any more."""
        self.fault, self._refuse_next = None, b""

    async def all_executed(self) -> None:
        """Until nothing is held back any more."""
        await self._goes_on.wait()
        await asyncio.gather(*self._late)

    async def close(self) -> None:
        await super().close()
        await self._loader.aclose()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuse_next:
            writer.write(self._refuse_next)
            self._refuse_next = b""
            with suppress(OSError):
                await writer.drain()
            writer.close()
            return
        self.connections += 1
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        link = _Link(writer, server_writer)
        link.all_answered.set()
        self._start(self._pass_requests(reader, link))
        self._start(self._pass_replies(server_reader, link))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _pass_requests(self, reader: asyncio.StreamReader, link: _Link) -> None:
        frames = Frames()
        with suppress(OSError):
            while data := await reader.read(1 << 20):
                for request in frames.feed(data):
                    await self._goes_on.wait()
                    if not link.silent and not link.writer.is_closing():
                        await self._request(request, link)
        if not link.silent:  # else the server never learns that the other end is gone
            link.server.close()

    async def _request(self, request: bytes, link: _Link) -> None:
        arguments = words(request)
        label = await self._label(arguments)
        self.calls.append(label)
        fault = self.fault
        if fault is None or self.aim is None or not await self.aim.hits(label):
            self._send(request, link, None)
            return
        if fault is NOSCRIPT and arguments[0].upper() != b"EVALSHA":
            raise AssertionError(f"{label} is no script that the server could have forgotten")
        self.happened, self.fault, self.aim = True, fault.then, Aim(label)
        await link.all_answered.wait()  # what was asked before has nothing to do with it
        if fault.is_error:
            link.writer.write(fault.error)
        elif fault.executed:
            self._send(request, link, fault)
        elif fault is SILENT:
            link.silent = True
        elif fault is REQUEST_LATE:
            link.silent = True
            self._late.append(self._start(self._send_late(request, link)))
        elif fault is PAUSE:
            self._goes_on.clear()
            await asyncio.sleep(LATE)
            self._goes_on.set()
            self._send(request, link, None)
        else:
            if fault is MAX_CLIENTS and label == "setname":
                link.writer.write(fault.error)
            elif fault is MAX_CLIENTS:
                self._refuse_next = fault.error
            link.writer.transport.abort()

    def _send(self, request: bytes, link: _Link, fate: Fault | None) -> None:
        link.unanswered.append(fate)
        link.all_answered.clear()
        link.server.write(request)

    async def _send_late(self, request: bytes, link: _Link) -> None:
        await asyncio.sleep(LATE)
        link.server.write(request)
        await link.late_reply.wait()

    async def _pass_replies(self, server: asyncio.StreamReader, link: _Link) -> None:
        frames = Frames()
        with suppress(OSError):
            while data := await server.read(1 << 20):
                for reply in frames.feed(data):
                    if link.silent:
                        link.late_reply.set()
                    else:
                        await self._reply(reply, link)
        link.writer.close()

    async def _reply(self, reply: bytes, link: _Link) -> None:
        if reply.startswith(b"*3\r\n$7\r\nmessage\r\n"):  # nobody asked for it
            link.writer.write(reply)
            return
        fate = link.unanswered.popleft()
        if fate is None:
            link.writer.write(reply)
        elif fate is REPLY_LATE:
            await asyncio.sleep(LATE)
            link.writer.write(reply)
        else:
            if self.meanwhile is not None:
                await self.meanwhile()
            if fate is REPLY_CUT:
                link.writer.write(reply[: len(reply) // 2])
            link.writer.transport.abort()
        if not link.unanswered:
            link.all_answered.set()

    async def _label(self, arguments: list[bytes]) -> str:
        command = arguments[0].decode().lower()
        if command == "client":
            return arguments[1].decode().lower()
        if command == "evalsha":
            script = _by_sha()[arguments[1]]
            if arguments[1] not in self._known:  # so that it is asked for once, whatever ran before
                self._known.add(arguments[1])
                await self._loader.script_load(script.source)
            return script.name.replace("/", "-")
        if command == "eval":
            names = [one.name for one in _by_sha().values() if one.source.encode() == arguments[1]]
            return names[0].replace("/", "-") if names else command  # else: whether a fresh connection answers
        return command


@cache
def _by_sha() -> dict[bytes, Script]:
    """Every script there is, by the name that the server knows it by."""
    return {script.sha.encode(): script for script in every_script()}


def every_script() -> list[Script]:
    found = [AGGREGATE]
    for module in pkgutil.walk_packages(veredus.store.__path__, "veredus.store."):
        values = vars(importlib.import_module(module.name)).values()
        found += [value for value in values if isinstance(value, Script)]
    inserts = (ENQUEUE, SCHEDULE, ADD, ENQUEUE_BOUND)
    found += [with_insert(outer, insert) for outer in (REPLACE, TICK, HOLDERS, SPAWN, ROOM) for insert in inserts]
    return found


def counted(labels: list[str]) -> list[tuple[str, int]]:
    """Each label with how often it came before, and once more: the nth of its kind."""
    seen: Counter[str] = Counter()
    result = []
    for label in labels:
        seen[label] += 1
        result.append((label, seen[label]))
    return result


@asynccontextmanager
async def faults_before(socket: str) -> AsyncIterator[FaultProxy]:
    proxy = FaultProxy(socket)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
