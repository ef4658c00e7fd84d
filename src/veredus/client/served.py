"""Tasks whose options only Veredus workers keep: tells, or refuses, while none is alive that does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from veredus.errors import QueueUnserved, StoreError
from veredus.store.intake import Entry
from veredus.store.roll import Member, Roll
from veredus.wire.types import aggregates

logger = logging.getLogger("veredus.client")

FRESH = 5.0
"""Seconds for which it is not asked again who is alive."""
RESTART = 15.0
"""Seconds that a worker may be gone, to be restarted, before somebody is warned."""
MOST = 1000
"""Queues and groups that are remembered."""


class ServedCheck:
    """One per client. A warning needs a worker of the queue that is alive, such as a Go server: while there is none at
    all, any task waits, and the one to come may well be a Veredus worker. A refusal does not need that."""

    def __init__(self, roll: Roll, choice: str) -> None:
        self._roll = roll
        self.is_on = choice != "ignore"
        self._refuses = choice == "refuse"
        self._members: Sequence[Member] = ()
        self._asked_at = -FRESH
        self._asking = asyncio.Lock()
        self._kept_at: dict[tuple[str, str, str], float] = {}
        """By queue, option and group, when a worker was last seen that keeps it."""
        self._warned: set[tuple[str, str, str]] = set()

    async def before(self, queue: str, entry: Entry) -> None:
        """Before it is sent: raises if tasks that nobody keeps are refused. While the server cannot be asked, the call
        that sends the task tells why."""
        if self._refuses:
            for option, reason in await self._lacks(queue, entry):
                raise QueueUnserved(queue, option, reason)

    async def after(self, queue: str, entry: Entry) -> None:
        """Once it is stored: warns, once per outage."""
        if self._refuses:
            return
        for option, reason in await self._lacks(queue, entry):
            is_served = any(queue in member.server.queues for member in self._members)
            if is_served and self._is_news((queue, option, entry.group)):
                logger.warning(
                    "queue %s: a task was sent with %s, but %s. "
                    'App(unserved="refuse") refuses such tasks, "ignore" does not warn',
                    queue,
                    option,
                    reason,
                )

    def _is_news(self, key: tuple[str, str, str]) -> bool:
        if key in self._warned or time.monotonic() - self._kept_at.get(key, -RESTART) < RESTART:
            return False
        if len(self._warned) >= MOST:
            return False
        self._warned.add(key)
        return True

    async def _lacks(self, queue: str, entry: Entry) -> list[tuple[str, str]]:
        """The options of a task that nobody alive keeps, and what follows from that."""
        try:
            await self._ask()
        except (StoreError, OSError):
            return []
        lacks = []
        for option in entry.needs:
            if self._is_kept(queue, option, entry):
                if len(self._kept_at) >= MOST:
                    self._kept_at.clear()
                self._kept_at[queue, option, entry.group] = time.monotonic()
                self._warned.discard((queue, option, entry.group))
            else:
                lacks.append((option, _consequence(option, entry)))
        return lacks

    async def _ask(self) -> None:
        async with self._asking:
            if time.monotonic() - self._asked_at >= FRESH:
                self._members = await self._roll.members()
                self._asked_at = time.monotonic()

    def _is_kept(self, queue: str, option: str, entry: Entry) -> bool:
        """Whether somebody alive keeps it."""
        ours = [member for member in self._members if not member.is_go]
        if option == "order_key":
            return bool(ours)  # whoever it is: every worker looks after the lanes of all queues
        ours = [member for member in ours if queue in member.server.queues]
        if option != "group" or entry.due:
            return bool(ours)
        if any(member.is_go and queue in member.server.queues for member in self._members):
            return True  # a Go server does not say whether it aggregates
        return any(aggregates(member.types or "", queue, entry.group) for member in ours)


def _consequence(option: str, entry: Entry) -> str:
    if option == "order_key":
        return (
            "no Veredus worker is alive on this Redis, and Go runs only the first task of an order key; the others "
            "wait until one is. Start a Veredus worker, of any queue, or send without order_key"
        )
    if option != "group":
        return "no Veredus worker of this queue is alive, and Go keeps no limits. Serve the queue with Veredus workers"
    if entry.due:
        return (
            "no Veredus worker of this queue is alive, and Go runs a delayed task of a group alone. Start a Veredus "
            "worker of this queue, or send without a delay"
        )
    return (
        f"no worker of this queue is alive that aggregates group {entry.group!r}; its tasks wait until one is. Start a "
        "worker whose app has @app.aggregate for it"
    )
