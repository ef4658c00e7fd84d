"""Tasks whose options only Veredus workers support: warns about them, or refuses them, while no such worker is
alive."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from veredus.errors import QueueUnserved, StoreError
from veredus.store.tasks.intake import NewTask
from veredus.store.tasks.live_processes import LiveProcess, LiveProcesses
from veredus.wire.types import aggregates

logger = logging.getLogger("veredus.client")

FRESH = 5.0
"""Seconds for which the answer "a worker is alive" is reused."""
RESTART = 15.0
"""Seconds without a worker, as during a restart, before a warning."""
MOST = 1000
"""Queues and groups that are remembered."""


class ServedCheck:
    """One per client. A warning requires a live worker of the queue, such as a Go server: while there is none at
    all, every task waits, and the next worker may well be Veredus. A refusal does not require that."""

    def __init__(self, roll: LiveProcesses, choice: str) -> None:
        self._roll = roll
        self.is_on = choice != "ignore"
        self._refuses = choice == "refuse"
        self._members: Sequence[LiveProcess] = ()
        self._asked_at = -FRESH
        self._asking = asyncio.Lock()
        self._kept_at: dict[tuple[str, str, str], float] = {}
        """When a worker that supports the option was last seen, by queue, option and group."""
        self._warned: set[tuple[str, str, str]] = set()

    async def before(self, queue: str, entry: NewTask) -> None:
        """Before sending: raises if such tasks are refused. While the server cannot be asked, the call that sends
        the task reports the error."""
        if self._refuses:
            for option, reason in await self._lacks(queue, entry):
                raise QueueUnserved(queue, option, reason)

    async def after(self, queue: str, entry: NewTask) -> None:
        """After storing: warns, once per outage."""
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

    async def _lacks(self, queue: str, entry: NewTask) -> list[tuple[str, str]]:
        """The options of a task that no live worker supports, and what follows from that."""
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

    def _is_kept(self, queue: str, option: str, entry: NewTask) -> bool:
        """Whether a live worker supports it."""
        ours = [member for member in self._members if not member.is_go]
        if option == "order_key":
            return bool(ours)  # any worker will do: each checks the order keys of all queues
        ours = [member for member in ours if queue in member.server.queues]
        if option != "group" or entry.due:
            return bool(ours)
        if any(member.is_go and queue in member.server.queues for member in self._members):
            return True  # a Go server does not say whether it aggregates
        return any(aggregates(member.types or "", queue, entry.group) for member in ours)


def _consequence(option: str, entry: NewTask) -> str:
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
