"""Peer: the client's side of one session, over any number of connections."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any

from veredus.errors import ConfigError, SessionClosed, Unreachable
from veredus.link.session import ClientLink
from veredus.model.delivery import Cursor
from veredus.model.frames import Welcome
from veredus.peer.addresses import Verify, parse_addresses
from veredus.peer.config import PeerConfig
from veredus.peer.dispatcher import Dispatcher
from veredus.peer.groups import PeerGroups
from veredus.peer.inbox import Inbox, OnMessage
from veredus.peer.items import Closed, Connected, Event, Item, Retrying
from veredus.peer.reconnector import Reconnector, Token
from veredus.peer.requests import PeerRequests, Pending, lost
from veredus.peer.saved_session import SavedSession
from veredus.process import forks

logger = logging.getLogger("veredus.peer")


def connect(
    url: str | Sequence[str],
    *,
    token: Token = "",
    resume: SavedSession | str | None = None,
    verify: Verify = None,
    on_message: OnMessage | None = None,
    on_event: Callable[[Event], None] | None = None,
    client: str = "",
    **settings: Any,
) -> Peer:
    """A peer of the gateway at `url` (ws://, wss:// or quic://). With several, each failure moves on to the next.

        async with connect("ws://127.0.0.1:8765", token="ada") as peer:
            print(await peer.request("render", {"order": 42}))
            async for item in peer: ...

    `token`: a string, or a function (async or not) that returns one before every connection. `resume`: the result of
    `export()`. `verify`: whether to verify the server's certificate: True, False or a CA file; by default, True except
    on loopback. `on_message`: called with every item instead of iterating; the item is acknowledged when the call, or
    its awaitable, has ended. `settings`: the fields of PeerConfig.
    """
    known = PeerConfig.__dataclass_fields__
    for name in settings:
        if name not in known:
            raise ConfigError("setting of connect()", name, f"one of {', '.join(known)}", known=known)
    saved = SavedSession.from_json(resume) if isinstance(resume, str) else resume
    return Peer(url, PeerConfig(**settings), token, saved, verify, on_message, on_event, client)


class Peer:
    """Use `async with connect(...)`, or `peer = await connect(...)` and close or detach it yourself.

    Iterating returns messages, gaps and discontinuities in order. Requesting the next item acknowledges the previous
    one.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        config: PeerConfig,
        token: Token = "",
        resume: SavedSession | None = None,
        verify: Verify = None,
        on_message: OnMessage | None = None,
        on_event: Callable[[Event], None] | None = None,
        client: str = "",
    ) -> None:
        self._addresses = parse_addresses(url)
        self._config = config
        self._token = token
        self._verify = verify
        self._on_message = on_message
        self._on_event = on_event
        self._link = ClientLink(
            client=client or "veredus-peer-python",
            window_messages=config.window_messages,
            window_bytes=config.window_bytes,
        )
        if resume is not None:
            self._link.restore(resume.session, resume.secret, resume.cursor, resume.next_rid)
        self._inbox = Inbox(self._acknowledge, config.window_messages)
        self._reader_task: asyncio.Task[None] | None = None
        self._runner: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._ended = False
        self._error: SessionClosed | None = None
        self._problem = ""
        self._pid = 0
        """The id of the process that started it."""
        forks.register(self)

    def forked(self) -> None:
        """Drop the session in a forked child: it belongs to the parent."""
        if self._runner is not None:
            forks.leak(self._runner, self._reader_task, self._reconnector)
            self._runner = self._reader_task = None

    # ---- life

    def __await__(self) -> Generator[Any, None, Peer]:
        return self._start().__await__()

    async def __aenter__(self) -> Peer:
        return await self._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def _start(self) -> Peer:
        """Wait for the first welcome. Raises SessionClosed (refused) or Unreachable."""
        self._require_own_process()
        if self._runner is not None:
            raise ConfigError("peer", "started", "a peer that was not started before; connect() makes a new one")
        loop = asyncio.get_running_loop()
        self._loop, self._pid = loop, os.getpid()
        self._reconnector = Reconnector(
            self._link,
            self._addresses,
            self._config,
            token=self._token,
            verify=self._verify,
            deliver=lambda event: self._dispatcher.deliver(event),
            announce=self._announce,
        )
        self._requests = PeerRequests(self._link, self._reconnector.flush_soon, self._config)
        self._groups = PeerGroups(self._link, self._reconnector.flush_soon)
        self._dispatcher = Dispatcher(
            self._requests,
            self._groups,
            self._inbox,
            on_message=self._on_message,
            acknowledge=self._acknowledge,
            on_welcome=self._welcomed,
            announce=self._announce,
        )
        self._ready: asyncio.Future[None] = loop.create_future()
        self._runner = loop.create_task(self._run(), name="veredus-peer")
        callback = self._dispatcher.async_callback
        if callback is not None:
            self._reader_task = loop.create_task(self._inbox.call_for_each(callback), name="veredus-peer-messages")
        try:
            await asyncio.wait_for(asyncio.shield(self._ready), self._config.connect_timeout)
        except TimeoutError:
            await self.detach()
            tried = ", ".join(address.url for address in self._addresses)
            raise Unreachable(
                f"no welcome from {tried} in {self._config.connect_timeout:g} s: {self._problem}"
            ) from None
        except BaseException:
            await self.detach()
            raise
        return self

    async def _run(self) -> None:
        try:
            self._finish(await self._reconnector.run())
        except Exception as exc:  # wrong settings or a bug: a new connection would not help
            logger.exception("the peer failed")
            self._finish(SessionClosed(f"the peer failed: {exc!r}"))

    def _finish(self, error: SessionClosed | None) -> None:
        if self._ended:
            return
        self._ended, self._error = True, error
        problem = str(error) if error else "the session was closed here"
        self._requests.fail_all(lost(problem))
        self._groups.fail_all(problem)
        if not self._ready.done():
            self._ready.set_exception(error or SessionClosed("closed before the first welcome"))
            self._ready.exception()
        self._inbox.end(error)
        self._over.set()
        self._announce(Closed(error))

    async def wait_closed(self) -> None:
        """Wait until the session has ended. Raises SessionClosed unless this side ended it."""
        self._require_started()
        await self._over.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)  # the traceback would grow with every raise

    async def close(self) -> None:
        """End the session: the gateway deletes it with its unread messages."""
        await self._stop(bye=True)

    async def detach(self) -> None:
        """Disconnect, but keep the session until its TTL, so that it can be resumed with `export()`."""
        await self._stop(bye=False)

    async def _stop(self, *, bye: bool) -> None:
        if self._runner is None:
            return
        if not self._ended:
            await self._reconnector.stop(bye=bye)
        self._runner.cancel()
        if self._reader_task is not None and self._reader_task is not asyncio.current_task():
            self._reader_task.cancel()
            await asyncio.wait({self._reader_task})
        await asyncio.wait({self._runner})
        self._finish(None)

    def cut(self) -> None:
        """Break the connection like a network failure. The peer reconnects and resumes by itself."""
        self._require_started()
        self._reconnector.cut()

    # ---- state

    @property
    def session(self) -> str:
        return self._link.session_id

    @property
    def cursor(self) -> Cursor:
        """The position of the application: everything up to here is handled."""
        return self._link.cursor

    @property
    def connected(self) -> bool:
        return self._link.state == "open"

    @property
    def closed(self) -> bool:
        return self._ended

    def export(self) -> SavedSession:
        """For `connect(..., resume=...)` in another process, after `detach()` here. Unhandled items are sent again."""
        return SavedSession(self._link.session_id, self._link.secret, self._link.cursor, self._link.next_rid)

    def stats(self) -> dict[str, int]:
        """Counters since the start, and current values."""
        if self._runner is None:
            return {}
        return {
            **{name: getattr(self._dispatcher, name) for name in ("received", "resumes", "resets", "gaps")},
            "duplicates": self._link.duplicates,
            "connections": self._reconnector.connections,
            "handled_seq": self._link.cursor.seq,
            "waiting": len(self._inbox),
            "open_requests": len(self._requests),
        }

    # ---- requests and groups

    async def request(
        self,
        action: str,
        body: Any = None,
        *,
        deadline: float | None = None,
        serial: bool = False,
        no_reply: bool = False,
    ) -> Any:
        """The result of `action`. After a reconnect the request is sent again under the same number, so it runs once.

        `body`: a JSON value, or bytes. `deadline`: seconds after which the response is useless. `serial`: run after all
        earlier serial requests of this session. `no_reply`: return as soon as the gateway has accepted the request.
        Raises RequestRejected, RequestFailed, RequestTimeout or RequestLost.
        """
        return await self.submit(action, body, deadline=deadline, serial=serial, no_reply=no_reply)

    def submit(
        self,
        action: str,
        body: Any = None,
        *,
        deadline: float | None = None,
        serial: bool = False,
        no_reply: bool = False,
    ) -> Pending:
        """Send a request without waiting. The returned Pending can be awaited and has the request's number."""
        self._require_open()
        return self._requests.submit(action, body, deadline, serial, no_reply)

    def join(self, group: str) -> asyncio.Future[None]:
        """Join a group, and join it again after a lost session. Its messages arrive in order with all others.

        Awaiting the future waits for the gateway's answer, or raises RequestRejected.
        """
        self._require_open()
        return self._groups.ask(group, True)

    def leave(self, group: str) -> asyncio.Future[None]:
        """Leave a group. The future works as that of `join`."""
        self._require_open()
        return self._groups.ask(group, False)

    def _require_open(self) -> None:
        self._require_started()
        if self._ended:
            raise self._error or SessionClosed("the session was closed here")

    def _require_own_process(self) -> None:
        if self._pid not in (0, os.getpid()):
            raise SessionClosed(f"the session belongs to process {self._pid}; call connect() again after a fork")

    def _require_started(self) -> None:
        self._require_own_process()
        if self._runner is None:
            raise SessionClosed("not connected yet: write `async with connect(...) as peer` or `await connect(...)`")

    # ---- reading

    def __aiter__(self) -> Peer:
        self._require_no_callback()
        return self

    async def __anext__(self) -> Item:
        return await self._inbox.take()

    async def receive(self, timeout: float | None = None) -> Item:
        """The next item, as when iterating. Raises TimeoutError after `timeout` seconds."""
        self._require_no_callback()
        try:
            async with asyncio.timeout(timeout):
                return await self._inbox.take()
        except StopAsyncIteration:
            raise SessionClosed("the session was closed here") from None

    async def receive_many(self, most: int = 256) -> list[Item]:
        """Wait for at least one item and return up to `most`. The next call acknowledges them. Empty at the end."""
        self._require_no_callback()
        try:
            return await self._inbox.take_many(most)
        except StopAsyncIteration:
            return []

    def handled(self) -> None:
        """Acknowledge the last item without requesting the next one, for example before `detach()`."""
        self._inbox.acknowledge_last()

    def _require_no_callback(self) -> None:
        self._require_started()
        if self._on_message is not None:
            raise ConfigError("on_message", "given", "either on_message or iterating, not both")

    def _acknowledge(self, cursor: Cursor) -> None:
        now = self._loop.time()
        self._link.done(cursor, now)
        if self._link.has_output:
            self._reconnector.flush_soon()
        else:
            self._reconnector.arm_before(now + 0.1)

    def _welcomed(self, welcome: Welcome) -> None:
        if not self._ready.done():
            self._ready.set_result(None)
        url = self._reconnector.current.url
        self._announce(Connected(welcome.sid, welcome.result, welcome.reason, welcome.node, url))

    def _announce(self, event: Event) -> None:
        if isinstance(event, Retrying):
            self._problem = event.problem
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:  # a user's function may raise anything
                logger.exception("on_event failed for %r", event)
