"""A client for one server, at a fixed address or found through Sentinel. It reconnects by itself."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from veredus.errors import CommandRefused, ConnectionLost, NotReady, StoreError
from veredus.process import forks
from veredus.store.connection import error_replies, repeats
from veredus.store.connection.address import Address
from veredus.store.connection.connection import Argument, Connection, open_connection
from veredus.store.connection.scripts import Script
from veredus.store.connection.sentinels import Sentinels

Endpoint = tuple[str, int] | str

CHECK_TIMEOUT = 1.0
"""Seconds within which an idle connection must answer a PING; after that it is replaced."""
SAME_TIME = 0.05
"""Seconds in which two replies that the server sent at the same time are read, whichever connection is read first."""


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One script call. All keys share a hash tag."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument]


class Redis(Protocol):
    """The interface that the parts of the store need, for any kind of deployment."""

    address: Address

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Run a script. If the connection breaks before the reply, the error is reported; only reads are sent again."""
        ...

    async def run_each(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Run several scripts, in one round trip per server. A failed call has its error in place of its reply."""
        ...

    async def command(self, *args: Argument, key: str) -> Any:
        """Run one plain command; `key` determines the server."""
        ...

    async def command_each(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Run several plain commands, each with its key in the second place, in one round trip per server. A failed
        command has its error in place of its reply."""
        ...

    async def open(self, key: str) -> Connection:
        """A separate connection, for commands that block and for subscriptions."""
        ...

    async def be_connected(self, key: str) -> None:
        """Connect, so that the next call with this key is sent at once. Raises StoreError. If cancelled, connecting
        continues."""
        ...

    def where(self) -> str:
        """The server's name for messages, without the password."""
        ...

    async def close(self) -> None: ...


class SingleServer:
    """One server and the shared connection to it."""

    def __init__(self, address: Address, resolve: Callable[[], Awaitable[Endpoint]], timeout: float, name: str) -> None:
        self.address = address
        self._resolve = resolve
        self._timeout = timeout
        self._name = name
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._comparing: asyncio.Task[None] | None = None
        self._proven: Connection | None = None
        """The connection on which a script was last answered."""
        forks.register(self)

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        is_repeated = False
        while True:
            connection = self._usable() or await self._connect()
            try:
                try:
                    reply = await connection.call("EVALSHA", script.sha, len(keys), *keys, *args)
                except error_replies.NoScript:
                    reply = await connection.call("EVAL", script.source, len(keys), *keys, *args)
                self._proven = connection
                if type(reply) is list and (error := error_replies.error_in(reply)) is not None:
                    raise error
                return reply
            except NotReady as exc:
                raise self._judged(connection, exc) from None
            except ConnectionLost as exc:
                if is_repeated or not _is_broken(exc) or script.name not in repeats.SCRIPTS:
                    raise
                is_repeated = True

    async def run_each(self, calls: Sequence[ScriptCall]) -> list[Any]:
        results = await self._send_each(
            [("EVALSHA", c.script.sha, len(c.keys), *c.keys, *c.args) for c in calls], is_proof=True
        )
        again = [
            position
            for position, result in enumerate(results)
            if isinstance(result, error_replies.NoScript)
            or (_is_broken(result) and calls[position].script.name in repeats.SCRIPTS)
        ]
        if again:
            rows = [calls[position] for position in again]
            replies = await self._send_each([("EVAL", c.script.source, len(c.keys), *c.keys, *c.args) for c in rows])
            for position, reply in zip(again, replies, strict=True):
                results[position] = reply
        for position, result in enumerate(results):
            if type(result) is list:
                results[position] = error_replies.error_in(result) or result
        return results

    async def command_each(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        results = await self._send_each(commands)
        again = [
            position
            for position, result in enumerate(results)
            if _is_broken(result) and commands[position][0] in repeats.COMMANDS
        ]
        if again:
            replies = await self._send_each([commands[position] for position in again])
            for position, reply in zip(again, replies, strict=True):
                results[position] = reply
        return results

    async def _send_each(self, commands: Sequence[Sequence[Argument]], *, is_proof: bool = False) -> list[Any]:
        try:
            connection = self._usable() or await self._connect()
            replies = connection.call_many(commands)
        except StoreError as exc:
            return [exc] * len(commands)
        results: list[Any] = await asyncio.gather(*replies, return_exceptions=True)
        for position, result in enumerate(results):
            if isinstance(result, NotReady):
                results[position] = self._judged(connection, result)
        if is_proof and results and not isinstance(results[-1], ConnectionLost):
            self._proven = connection
        return results

    async def command(self, *args: Argument, key: str) -> Any:
        is_repeated = False
        while True:
            connection = self._usable() or await self._connect()
            try:
                return await connection.call(*args)
            except NotReady as exc:
                raise self._judged(connection, exc) from None
            except ConnectionLost as exc:
                if is_repeated or not _is_broken(exc) or args[0] not in repeats.COMMANDS:
                    raise
                is_repeated = True

    async def be_connected(self, key: str = "") -> None:
        if self._usable() is None:
            await self._connect()

    async def ask(self, *args: Argument) -> Any:
        """Run one command on the node that is taking over its slot."""
        connection = await self._connect()
        asking, answer = connection.call_many([("ASKING",), args])
        await asking
        return await answer

    async def open(self, key: str) -> Connection:
        endpoint = await self._resolve()
        return await self._open(endpoint)

    def where(self) -> str:
        address = self.address.describe()
        if self._connection is not None and self._connection.where not in address:
            return f"{address} ({self._connection.where})"
        return address

    def forked(self) -> None:
        """After a fork: the next call opens a new connection."""
        forks.leak(self._connection, self._proven, self._connecting, self._comparing)
        self._connection = self._proven = self._connecting = self._comparing = None

    async def close(self) -> None:
        for task in (self._connecting, self._comparing):
            if task is not None:
                task.cancel()
        self._connecting = self._comparing = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _judged(self, connection: Connection, exc: NotReady) -> StoreError:
        """Prepare an error for the caller. A read-only server is no longer the master: its connection is dropped, so
        that the next call looks for the master."""
        if "READONLY" in str(exc):
            connection.close(ConnectionLost(f"{connection.where} is a read-only replica now"))
        if isinstance(exc, error_replies.Moved) and self.address.kind != "cluster":
            return CommandRefused(f"{connection.where} is a node of a cluster: use redis+cluster://{connection.where}")
        return exc

    async def _connect(self) -> Connection:
        """Callers that arrive while a connection is being made wait for that one."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._make_connection())
            self._connecting.add_done_callback(self._connected)
        return await error_replies.shared(
            self._connecting, f"{self.address.describe()}: closed while it was connecting"
        )

    def _connected(self, task: asyncio.Task[Connection]) -> None:
        if self._connecting is task:
            self._connecting = None
        if not task.cancelled():
            task.exception()  # mark as seen: all waiting callers got it

    def at_hand(self) -> Connection | None:
        """The connection that a call would use now, if a thread without an event loop can read from it."""
        return None if self.address.tls else self._usable()

    def _usable(self) -> Connection | None:
        """The connection, if a call can be sent at once: not while it is being made or checked."""
        connection = self._connection
        if connection is None or not connection.alive or self._connecting is not None or connection.is_idle:
            return None
        return connection

    async def _make_connection(self) -> Connection:
        """Check a connection that was idle: something on the way to the server may have forgotten it without notice.
        A call that is sent on it gets no reply, and a change cannot be sent again."""
        connection = self._connection
        if connection is not None and connection.alive:
            if not connection.is_idle or await _answers(connection):
                return connection
            connection.close()
        self._use(await self._open(await self._resolve()))
        assert self._connection is not None
        return self._connection

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        connection.on_silence = self._silent

    def _silent(self) -> None:
        """A call has waited for a while without receiving a byte."""
        is_checked = self._connecting is not None or (self._comparing is not None and not self._comparing.done())
        if not is_checked:
            self._comparing = asyncio.create_task(self._compare())

    async def _compare(self) -> None:
        """Ask on a fresh connection. If it is answered while the old one stays silent, the old one is dead: its
        callers get an error now, and may send again. A slow server is slow on both."""
        silent = self._connection
        if silent is None:
            return
        heard_at, fresh = silent.heard_at, None
        try:
            fresh = await self._open(await self._resolve())
            await fresh.call("EVAL", "return 1", 0)  # refused or delayed whenever any other script is
            await asyncio.sleep(SAME_TIME)
            if self._connection is silent and silent.alive and silent.heard_at == heard_at:
                if self._proven is not silent:
                    # No script was ever answered on it. Perhaps the server, or a proxy before it, is slow with just
                    # these calls: with the same limit on each connection they would never be answered.
                    fresh.silence = 2 * silent.silence
                self._use(fresh)
                silent.close(
                    ConnectionLost(f"{silent.where} does not answer on this connection, but does on a new one")
                )
        except StoreError:
            pass  # the server is slow or away: callers continue to wait
        finally:
            if fresh is not None and fresh is not self._connection:
                fresh.close()

    async def _open(self, endpoint: Endpoint) -> Connection:
        address = self.address
        return await open_connection(
            endpoint,
            timeout=self._timeout,
            username=address.username,
            password=address.password,
            db=address.db,
            tls=address.tls,
            name=self._name,
        )


def _is_broken(result: Any) -> bool:
    return isinstance(result, ConnectionLost) and not isinstance(result, error_replies.NoAnswer)


async def _answers(connection: Connection) -> bool:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            await connection.call("PING")
    except (ConnectionLost, TimeoutError):
        return False
    except StoreError:
        pass  # an error is a reply too
    return True


class Master(SingleServer):
    """The master that the sentinels name. When they name another one, connections to all other servers are dropped."""

    def __init__(self, address: Address, timeout: float, name: str) -> None:
        self._sentinels = Sentinels(address, timeout, self._switch)
        self._opened: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._closes = 0
        super().__init__(address, self._sentinels.find_master, timeout, name)

    async def count_candidates(self) -> int:
        """The number of replicas that may become the master, according to the sentinels."""
        return await self._sentinels.count_candidates()

    async def close(self) -> None:
        self._closes += 1
        self._sentinels.close()
        await super().close()

    def _switch(self, endpoint: tuple[str, int]) -> None:
        where = f"{endpoint[0]}:{endpoint[1]}"
        for connection in list(self._opened):
            if connection.where != where:
                connection.close(ConnectionLost(f"{connection.where} is no longer the master: {where} is"))

    async def _open(self, endpoint: Endpoint) -> Connection:
        closes = self._closes
        connection = await super()._open(endpoint)
        try:
            role = await connection.call("ROLE")
            if role[0] != b"master":
                raise NotReady(f"{connection.where} is not the master (yet): it says {role[0].decode()}")
        except BaseException:  # also when cancelled: nobody else has this connection
            connection.close()
            raise
        self._opened.add(connection)
        if closes == self._closes:  # closed in the meantime: nothing would end the listener
            self._sentinels.listen()
        return connection


def single(address: Address, timeout: float, name: str) -> SingleServer:
    """A client for the server at a fixed address, or for the master that Sentinel names."""

    async def fixed() -> Endpoint:
        return address.path if address.kind == "unix" else address.hosts[0]

    return Master(address, timeout, name) if address.kind == "sentinel" else SingleServer(address, fixed, timeout, name)
