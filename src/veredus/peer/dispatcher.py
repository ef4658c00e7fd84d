"""Dispatcher: passes the events of a link to requests, groups, the inbox or the callback, and event listeners."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable

from veredus.link.session import (
    Accepted,
    ClientEvent,
    Discontinued,
    Lost,
    Received,
    Rejected,
    VolatileReceived,
    Welcomed,
)
from veredus.model.delivery import Cursor
from veredus.model.frames import Kind, Welcome
from veredus.peer.groups import ANSWER as GROUP_ANSWER
from veredus.peer.groups import PeerGroups
from veredus.peer.inbox import Inbox, OnMessage
from veredus.peer.items import Discontinuity, Event, Gap, Item, Message, Volatile, decoded
from veredus.peer.requests import PeerRequests

logger = logging.getLogger("veredus.peer")


class Dispatcher:
    """One per peer."""

    def __init__(
        self,
        requests: PeerRequests,
        groups: PeerGroups,
        inbox: Inbox,
        *,
        on_message: OnMessage | None,
        acknowledge: Callable[[Cursor], None],
        on_welcome: Callable[[Welcome], None],
        announce: Callable[[Event], None],
    ) -> None:
        self._requests = requests
        self._groups = groups
        self._inbox = inbox
        self._on_message = on_message
        self._calls_directly = on_message is not None and not _is_async(on_message)
        self._acknowledge = acknowledge
        self._on_welcome = on_welcome
        self._announce = announce
        self._just_welcomed: Welcome | None = None
        self._forked = False
        self.received = self.resumes = self.resets = self.gaps = 0

    @property
    def async_callback(self) -> OnMessage | None:
        """The callback, if a separate task must call it because it is async."""
        return None if self._calls_directly else self._on_message

    def deliver(self, event: ClientEvent) -> None:
        if type(event) is Received:
            self._receive(event)
        elif isinstance(event, Accepted):
            self._requests.accepted(event.rid)
        elif isinstance(event, Rejected):
            self._requests.rejected(event)
        elif isinstance(event, Lost):
            self.gaps += 1
            self._put(Gap(event.first, event.last, event.reason, event.cursor))
        elif isinstance(event, Discontinued):
            self._discontinued(event.reason)
        elif isinstance(event, Welcomed):
            self._welcomed(event.welcome)
        elif isinstance(event, VolatileReceived):
            data = decoded(event.body, event.encoding)
            if event.type == GROUP_ANSWER:
                self._groups.answered(data)
            self._announce(Volatile(event.type, data))

    def _receive(self, event: Received) -> None:
        frame, cursor = event
        self._just_welcomed = None
        if self._forked:
            self._forked = False
            self._inbox.drop_from(cursor.seq)
        self.received += 1
        if frame.kind == Kind.RESPONSE and self._requests.answered(frame) and self._has_no_reader:
            self._acknowledge(cursor)  # responses alone must not fill the window
            return
        self._put(Message(frame, cursor))

    @property
    def _has_no_reader(self) -> bool:
        return self._on_message is None and not self._inbox.has_reader and not len(self._inbox)

    def _discontinued(self, reason: str) -> None:
        welcome, self._just_welcomed = self._just_welcomed, None
        if welcome is None or welcome.result == "resumed":  # the messages after our cursor were replaced
            self._forked = True
            if welcome is not None:
                self._inbox.drop_from(welcome.top + 1)
        item = Discontinuity(reason)
        if not self._inbox.ends_with(item):  # already reported, and nothing arrived since
            self.resets += 1
            self._put(item)

    def _put(self, item: Item) -> None:
        if not self._calls_directly:
            self._inbox.put(item)
            return
        try:
            called = self._on_message(item) if self._on_message is not None else None
            if inspect.isawaitable(called):
                raise TypeError("on_message returned an awaitable: declare it with async def")
        except Exception:  # a user's function may raise anything
            logger.exception("on_message failed for %r; it counts as handled", item)
        if not isinstance(item, Discontinuity):
            self._acknowledge(item.cursor)

    def _welcomed(self, welcome: Welcome) -> None:
        self._just_welcomed = welcome
        self.resumes += welcome.result == "resumed"
        self._requests.welcomed()
        self._groups.welcomed()
        self._on_welcome(welcome)


def _is_async(function: OnMessage) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
