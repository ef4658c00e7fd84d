"""A peer: the client's side of one session, over as many connections as it takes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any

from veredus import forks
from veredus.errors import ConfigError, SessionClosed, Unreachable
from veredus.link.session import ClientLink
from veredus.model.delivery import Cursor
from veredus.model.frames import Welcome
from veredus.peer.addresses import Verify, parse_addresses
from veredus.peer.config import PeerConfig
from veredus.peer.groups import Groups
from veredus.peer.inbox import Inbox, OnMessage
from veredus.peer.items import Closed, Connected, Event, Item, Retrying
from veredus.peer.line import Line, Token
from veredus.peer.reception import Reception
from veredus.peer.requests import Pending, Requests, lost
from veredus.peer.saved import SavedSession

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
    """A peer of the gateway at `url` (ws://, wss:// or quic://; several: each failure goes to the next).

        async with connect("ws://127.0.0.1:8765", token="ada") as peer:
            print(await peer.request("render", {"order": 42}))
            async for item in peer: ...

    `token`: a text, or a function (async or not) that fetches one before every connection. `resume`: what `export()`
    gave. `verify`: as for TLS, True, False or a CA file; by default everything but this machine itself is verified.
    `on_message`: called with every item instead of an iteration; it is acknowledged when the call (or what it awaits)
    is done. `settings`: the fields of PeerConfig.
    """
    known = PeerConfig.__dataclass_fields__
    for name in settings:
        if name not in known:
            raise ConfigError("setting of connect()", name, f"one of {', '.join(known)}", known=known)
    saved = SavedSession.from_json(resume) if isinstance(resume, str) else resume
    return Peer(url, PeerConfig(**settings), token, saved, verify, on_message, on_event, client)


class Peer:
    """Use `async with connect(...)`, or `peer = await connect(...)` and close or detach it yourself.

    Iterating gives messages, gaps and discontinuities in their order. Asking for the next item says that the one before
    is handled: only then is it acknowledged.
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
        self._pump: asyncio.Task[None] | None = None
        self._runner: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._ended = False
        self._error: SessionClosed | None = None
        self._problem = ""
        self._pid = 0
        """The process that started it."""
        forks.hold(self)

    def forked(self) -> None:
        """In a fork: the session is the parent's."""
        if self._runner is not None:
            forks.leave(self._runner, self._pump, self._line)
            self._runner = self._pump = None

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
        """Wait for the first welcome; raises SessionClosed (refused) or Unreachable."""
        self._must_be_here()
        if self._runner is not None:
            raise ConfigError("peer", "started", "a peer that is started once; connect() makes a new one")
        loop = asyncio.get_running_loop()
        self._loop, self._pid = loop, os.getpid()
        self._line = Line(
            self._link,
            self._addresses,
            self._config,
            token=self._token,
            verify=self._verify,
            deliver=lambda event: self._reception.deliver(event),
            announce=self._announce,
        )
        self._requests = Requests(self._link, self._line.flush_soon, self._config)
        self._groups = Groups(self._link, self._line.flush_soon)
        self._reception = Reception(
            self._requests,
            self._groups,
            self._inbox,
            on_message=self._on_message,
            acknowledge=self._acknowledge,
            welcomed=self._welcomed,
            announce=self._announce,
        )
        self._ready: asyncio.Future[None] = loop.create_future()
        self._runner = loop.create_task(self._run(), name="veredus-peer")
        callback = self._reception.asynchronous_callback
        if callback is not None:
            self._pump = loop.create_task(self._inbox.call_one_by_one(callback), name="veredus-peer-messages")
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
            self._finish(await self._line.run())
        except Exception as exc:  # nothing that a new connection could cure: a mistake, in the settings or in here
            logger.exception("the peer cannot go on")
            self._finish(SessionClosed(f"the peer cannot go on: {exc!r}"))

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
        """Until the session is over; raises the SessionClosed that ended it, if it was not this side."""
        self._must_have_started()
        await self._over.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)  # not with the frames of every time

    async def close(self) -> None:
        """End the session for good: the gateway deletes it, and what is unread with it."""
        await self._stop(bye=True)

    async def detach(self) -> None:
        """Leave, but keep the session resumable (until its TTL) for whoever has `export()`."""
        await self._stop(bye=False)

    async def _stop(self, *, bye: bool) -> None:
        if self._runner is None:
            return
        if not self._ended:
            await self._line.stop(bye=bye)
        self._runner.cancel()
        if self._pump is not None and self._pump is not asyncio.current_task():
            self._pump.cancel()
            await asyncio.wait({self._pump})
        await asyncio.wait({self._runner})
        self._finish(None)

    def cut(self) -> None:
        """Break the connection as a bad network would; the peer reconnects and resumes by itself."""
        self._must_have_started()
        self._line.cut()

    # ---- what is known

    @property
    def session(self) -> str:
        return self._link.session_id

    @property
    def cursor(self) -> Cursor:
        """Where the application has got to: everything up to here is handled."""
        return self._link.cursor

    @property
    def connected(self) -> bool:
        return self._link.state == "open"

    @property
    def closed(self) -> bool:
        return self._ended

    def export(self) -> SavedSession:
        """For `connect(..., resume=...)` in another process, after `detach()` here; what is unhandled comes again."""
        return SavedSession(self._link.session_id, self._link.secret, self._link.cursor, self._link.next_rid)

    def stats(self) -> dict[str, int]:
        """Counters since the start, and how it stands now."""
        if self._runner is None:
            return {}
        return {
            **{name: getattr(self._reception, name) for name in ("received", "resumes", "resets", "gaps")},
            "duplicates": self._link.duplicates,
            "connections": self._line.connections,
            "handled_seq": self._link.cursor.seq,
            "waiting": len(self._inbox),
            "open_requests": len(self._requests),
        }

    # ---- asking

    async def request(
        self,
        action: str,
        body: Any = None,
        *,
        deadline: float | None = None,
        serial: bool = False,
        no_reply: bool = False,
    ) -> Any:
        """The result of `action`. Sent again after a reconnect under the same number, so it runs once.

        `body`: a JSON value, or bytes. `deadline`: seconds until the answer is of no use. `serial`: after all earlier
        serial requests of this session. `no_reply`: return as soon as the gateway has it for good.
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
        """Send it and go on; the returned Pending can be awaited, and knows its number."""
        self._must_live()
        return self._requests.submit(action, body, deadline, serial, no_reply)

    def join(self, group: str) -> asyncio.Future[None]:
        """Join a group, also again after a lost session: its messages come numbered among all others.

        Awaiting it waits for the gateway's word, or raises RequestRejected.
        """
        self._must_live()
        return self._groups.ask(group, True)

    def leave(self, group: str) -> asyncio.Future[None]:
        """Leave a group; awaited as `join` is."""
        self._must_live()
        return self._groups.ask(group, False)

    def _must_live(self) -> None:
        self._must_have_started()
        if self._ended:
            raise self._error or SessionClosed("the session was closed here")

    def _must_be_here(self) -> None:
        if self._pid not in (0, os.getpid()):
            raise SessionClosed(f"the session belongs to process {self._pid}; in a fork of it, connect() again")

    def _must_have_started(self) -> None:
        self._must_be_here()
        if self._runner is None:
            raise SessionClosed("not connected yet: write `async with connect(...) as peer` or `await connect(...)`")

    # ---- reading

    def __aiter__(self) -> Peer:
        self._may_read()
        return self

    async def __anext__(self) -> Item:
        return await self._inbox.take()

    async def receive(self, timeout: float | None = None) -> Item:
        """The next item, as the iteration gives it; TimeoutError after so many seconds."""
        self._may_read()
        try:
            async with asyncio.timeout(timeout):
                return await self._inbox.take()
        except StopAsyncIteration:
            raise SessionClosed("the session was closed here") from None

    async def receive_many(self, most: int = 256) -> list[Item]:
        """At least one item and all that are here already; the next call acknowledges them. Empty at the end."""
        self._may_read()
        try:
            return await self._inbox.take_many(most)
        except StopAsyncIteration:
            return []

    def handled(self) -> None:
        """What was handed out last is handled, without asking for more: before `detach()`, for one."""
        self._inbox.done_with_last()

    def _may_read(self) -> None:
        self._must_have_started()
        if self._on_message is not None:
            raise ConfigError("on_message", "given", "no iteration beside it")

    def _acknowledge(self, cursor: Cursor) -> None:
        now = self._loop.time()
        self._link.done(cursor, now)
        if self._link.has_output:
            self._line.flush_soon()
        else:
            self._line.arm_before(now + 0.1)

    def _welcomed(self, welcome: Welcome) -> None:
        if not self._ready.done():
            self._ready.set_result(None)
        url = self._line.current.url
        self._announce(Connected(welcome.sid, welcome.result, welcome.reason, welcome.node, url))

    def _announce(self, event: Event) -> None:
        if isinstance(event, Retrying):
            self._problem = event.problem
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("on_event failed for %r", event)
