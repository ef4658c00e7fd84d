"""The inspector's methods for statistics of task types and for groups of errors."""

from __future__ import annotations

import fnmatch
from datetime import timedelta
from typing import TYPE_CHECKING

from veredus.errors import ConfigError
from veredus.inspector.bulk_runner import BulkResult, BulkRunner, Progress
from veredus.inspector.search import Query
from veredus.model.checks import seconds as checked_seconds
from veredus.model.error_groups import ErrorGroupInfo
from veredus.model.type_stats import DAY, HOUR, HOURS_KEPT, ThroughputInfo, TypeStatsInfo, Window, by_queue, by_type
from veredus.store.tasks.stats import Stats

if TYPE_CHECKING:
    from veredus.inspector.redaction import Redaction
    from veredus.store.inspect.queues import Queues

FAILED_STATES = ("retry", "archived")
"""Where tasks are that have failed."""


class Statistics:
    """Only what Veredus ran is in the statistics: Go counts nothing but the sums of its queues."""

    _stats: Stats
    _queues: Queues
    _bulk: BulkRunner
    _redaction: Redaction

    if TYPE_CHECKING:

        async def _known(self, queue: str, group: str | None = None) -> None: ...

    async def type_stats(
        self, seconds: float | timedelta = HOUR, *, queue: str | None = None, type: str = ""
    ) -> list[TypeStatsInfo]:
        """What ran of each task type in the last hour, or in the last `seconds`: attempts, failures, run times and
        waiting times, also of each minute (beyond 12 hours: of each hour). Workers write it every two seconds. `type`
        may be a pattern."""
        queues, window = await self._window(seconds, queue)
        found = by_type(await self._stats.types(queues, window), window)
        return [one for one in found if not type or fnmatch.fnmatchcase(one.type, type)]

    async def throughput(self, seconds: float | timedelta = HOUR, *, queue: str | None = None) -> list[ThroughputInfo]:
        """What ran in each queue in the last hour, or in the last `seconds`, of all types together."""
        queues, window = await self._window(seconds, queue)
        return by_queue(queues, await self._stats.counted(queues, window), window)

    async def errors(
        self, seconds: float | timedelta = DAY, *, queue: str | None = None, type: str = ""
    ) -> list[ErrorGroupInfo]:
        """The errors of the last day, or of the last `seconds`, grouped by task type, class and place over all queues.
        The group with the most errors comes first. `type` may be a pattern."""
        queues, window = await self._window(seconds, queue)
        found = [self._redaction.error(one) for one in await self._stats.errors(queues, window)]
        return [one for one in found if not type or fnmatch.fnmatchcase(one.type, type)]

    async def error_group(self, name: str) -> ErrorGroupInfo:
        """One group of the last 30 days, by its id or the beginning of it."""
        found = [one for one in await self.errors(HOURS_KEPT) if name and one.id.startswith(name)]
        if len(found) != 1:
            raise ConfigError("error group", name, "the id of one group, as `veredus errors` lists them")
        return found[0]

    async def run_errors(self, name: str, *, progress: Progress | None = None) -> BulkResult:
        """Make all tasks pending, in every queue, that wait for a retry or are archived because of an error of this
        group."""
        return await self._apply("run", name, progress)

    async def delete_errors(self, name: str, *, progress: Progress | None = None) -> BulkResult:
        """Delete all tasks, in every queue, that wait for a retry or are archived because of an error of this group."""
        return await self._apply("delete", name, progress)

    async def _apply(self, verb: str, name: str, progress: Progress | None) -> BulkResult:
        group = await self.error_group(name)
        where = Query(error_group=group.id)
        done = total = 0
        for queue in group.queues:
            for state in FAILED_STATES:
                result = await self._bulk.apply(verb, queue, state, None, where, progress, None)
                done, total = done + result.done, total + result.total
        return BulkResult(done, total)

    async def _window(self, seconds: float | timedelta, queue: str | None) -> tuple[list[str], Window]:
        window = await self.window(seconds)
        if queue is not None:
            await self._known(queue)
        return [queue] if queue is not None else await self._queues.names(), window

    async def window(self, seconds: float | timedelta) -> Window:
        """The minutes or hours that statistics of the last `seconds` consist of."""
        length = checked_seconds("seconds", seconds, most=HOURS_KEPT)
        return Window.last(round(max(1.0, length)), await self._queues.server_ms() // 1000)
