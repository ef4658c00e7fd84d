"""PeerGroups: joins and leaves groups, and repeats that after a lost answer, connection or session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from veredus.errors import RequestLost, RequestRejected
from veredus.link.session import ClientLink
from veredus.model.frames import retryable

ANSWER = "veredus.group"
"""Type of the volatile message with the answer: {"group", "joined", "code", "error"}."""

ASK_INTERVAL = 1.0
"""Seconds until a request is repeated, because the answer is volatile and may be lost."""


class PeerGroups:
    """One per peer."""

    def __init__(self, link: ClientLink, flush_soon: Callable[[], None]) -> None:
        self._link = link
        self._flush_soon = flush_soon
        self._wanted: dict[str, bool] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._retrying: set[str] = set()
        """Groups to ask for again although no caller waits."""

    def ask(self, group: str, member: bool) -> asyncio.Future[None]:
        self._wanted[group] = member
        waiting = self._waiting.get(group)
        if waiting is None or waiting.done():
            waiting = self._waiting[group] = asyncio.get_running_loop().create_future()
        self._ask(group, waiting)
        return waiting

    def _ask(self, group: str, waiting: asyncio.Future[None]) -> None:
        if self._waiting.get(group) is waiting and not waiting.done():
            self._send(group)
            self._flush_soon()
            asyncio.get_running_loop().call_later(ASK_INTERVAL, self._ask, group, waiting)

    def welcomed(self) -> None:
        for group in self._wanted:
            self._send(group)

    def _send(self, group: str) -> None:
        (self._link.join if self._wanted[group] else self._link.leave)(group)

    def answered(self, answer: Any) -> None:
        group = answer.get("group") if isinstance(answer, dict) else None
        if not isinstance(group, str) or group not in self._wanted:
            return
        code = answer.get("code") or 0
        if retryable(code):
            self._retry_later(group)
            return
        waiting = self._waiting.pop(group, None)
        if code:
            del self._wanted[group]  # a final refusal is not repeated
            problem = str(answer.get("error") or "refused")
            self._settle(waiting, RequestRejected(f"group {group}", problem, code=code, retryable=False))
        elif bool(answer.get("joined")) == self._wanted[group]:
            self._settle(waiting, None)
        elif waiting is not None:  # the answer to an earlier request
            self._waiting[group] = waiting

    def _retry_later(self, group: str) -> None:
        """Repeat after a temporary error, unless a waiting caller repeats anyway."""
        if group not in self._waiting and group not in self._retrying:
            self._retrying.add(group)
            asyncio.get_running_loop().call_later(ASK_INTERVAL, self._retry, group)

    def _retry(self, group: str) -> None:
        self._retrying.discard(group)
        if group in self._wanted and group not in self._waiting:
            self._send(group)
            self._flush_soon()

    def fail_all(self, problem: str) -> None:
        for group, waiting in self._waiting.items():
            self._settle(waiting, RequestLost(f"group {group}", problem))
        self._waiting.clear()

    @staticmethod
    def _settle(waiting: asyncio.Future[None] | None, error: Exception | None) -> None:
        if waiting is None or waiting.done():
            return
        if error is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(error)
            waiting.exception()  # mark as retrieved: the caller may not await it
