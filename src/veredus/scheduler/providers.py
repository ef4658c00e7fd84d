"""ProviderReader: calls the schedule providers at intervals. A provider that fails keeps its last entries."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from veredus.process.restarts import Restarts
from veredus.scheduler.entries import Entry, Provider

logger = logging.getLogger("veredus.scheduler")


class ProviderReader:
    """The last entries of each provider. They are read in the background, so that a slow provider delays no tick."""

    def __init__(self, providers: Sequence[Provider], on_change: Callable[[], None], restarts: Restarts) -> None:
        self._providers = providers
        self._restarts = restarts
        self._on_change = on_change
        self._answers: list[dict[str, Entry]] = [{} for _ in providers]
        self._failing = [False] * len(providers)
        self._tasks: list[asyncio.Task[None]] = []

    def entries(self) -> dict[str, Entry]:
        return {entry_id: entry for answer in self._answers for entry_id, entry in answer.items()}

    def start(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(
                    self._restarts.keep(f"reader of provider {one.name}", functools.partial(self._read_on, number))
                )
                for number, one in enumerate(self._providers)
            ]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_on(self, number: int) -> None:
        while True:
            await self.read(number)
            await asyncio.sleep(self._providers[number].interval)

    async def read(self, number: int) -> None:
        """Call one provider once."""
        provider = self._providers[number]
        try:
            answer = _checked(await _ask(provider))
        except Exception as exc:  # user code may raise anything
            if not self._failing[number]:
                logger.error(
                    "schedule provider %s failed, its last entries stay: %s: %s", provider.name, type(exc).__name__, exc
                )
            self._failing[number] = True
            return
        if self._failing[number]:
            logger.warning("schedule provider %s works again", provider.name)
        self._failing[number] = False
        before, self._answers[number] = self._answers[number], answer
        if answer.keys() != before.keys():
            self._on_change()


async def _ask(provider: Provider) -> Iterable[Entry]:
    """A plain function runs in a thread, including a generator that it returns."""
    if inspect.iscoroutinefunction(provider.function):
        answer = provider.function()
    else:
        answer = await asyncio.to_thread(_call, provider)
    entries: Iterable[Entry] = await answer if inspect.isawaitable(answer) else answer
    return entries


def _call(provider: Provider) -> Any:
    answer = provider.function()
    return list(answer) if inspect.isgenerator(answer) else answer


def _checked(answer: Iterable[Entry]) -> dict[str, Entry]:
    found = {}
    for entry in answer:
        if not isinstance(entry, Entry):
            raise TypeError(f"expected entries, such as Entry('@daily', task.call()), got {entry!r:.100}")
        found[entry.id] = entry
    return found
