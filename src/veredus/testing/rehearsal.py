"""Rehearsal: an app's tasks run inline, by the test's clock, with everything else as in production."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, Unpack

from veredus.client.blocking_portal import BlockingPortal
from veredus.client.call import Call
from veredus.client.client import Send
from veredus.client.handle import Handle
from veredus.errors import ConfigError
from veredus.events import Event, TaskEnded
from veredus.model.options import OptionArgs, seconds
from veredus.testing.clock import ManualClock
from veredus.testing.inline import InlineWorker, PlannedCrash
from veredus.testing.records import Expected, Run, Sent, describe, matching, run_of, unpack_sent
from veredus.testing.stage import TestStage
from veredus.worker.config import WorkerConfig, WorkerSettings

if TYPE_CHECKING:
    from veredus.app import App

MOST_STEPS = 100_000


class RehearsalSettings(WorkerSettings, total=False):
    """What `app.test(...)` accepts."""

    start: datetime | None
    url: str | None
    queues: Mapping[str, int] | Sequence[str] | str | None


class Rehearsal:
    """`async with app.test() as q:` (or `with`, in synchronous tests). Nothing runs until `drain` or `advance`.

    Inside, the app uses a database of its own on a real server and a clock that stands still; a worker is made of the
    same parts as the real one. `url` names a server of yours, whose database must be empty; `start` sets the clock;
    the other settings are those of `app.worker`.
    """

    def __init__(
        self,
        app: App,
        *,
        start: datetime | None = None,
        url: str | None = None,
        concurrency: int = 1,
        **settings: Any,
    ) -> None:
        self.app = app
        self.clock = ManualClock(start)
        self.sent: list[Sent] = []
        """Everything that was sent, in order."""
        self.runs: list[Run] = []
        """Every attempt, in order."""
        self._stage = TestStage(self.clock, url)
        self._stage.listener = self._on_fact
        self._settings = {**app.hooks, "concurrency": concurrency, **settings}
        self._config = WorkerConfig.make(**self._settings)
        self._worker: InlineWorker | None = None
        self._before: tuple[Any, Any] | None = None
        self._portal = BlockingPortal()

    # Entering and leaving.

    async def __aenter__(self) -> Self:
        if self.app.server.stage is not None or self._before is not None:
            raise ConfigError("app.test()", self.app, "one at a time for an app, and each only once")
        await self._stage.open()
        self._before = (self.app.state, self._record)
        self.app.server.enter(self._stage)
        self.app.send_middlewares.append(self._record)
        try:
            worker = InlineWorker(self.app, self._config)
            worker.crashes = []
            worker.bus.subscribe(self._hear)
            await worker.open(self.clock)
            self._worker = worker
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._leave()

    async def _leave(self) -> None:
        if self._before is None:
            return
        state, record = self._before
        try:
            if self._worker is not None:
                await self._worker.close()
        finally:
            try:
                await self.app.server.leave()
            finally:
                self.app.state = state
                self.app.send_middlewares.remove(record)
                await self._stage.close()

    def __enter__(self) -> BlockingRehearsal:
        self._portal.run(self.__aenter__())
        return BlockingRehearsal(self, self._portal)

    def __exit__(self, *exc: object) -> None:
        try:
            self._portal.run(self.__aexit__(*exc))
        finally:
            self._portal.close()

    # Time.

    @property
    def now(self) -> datetime:
        """The test's time."""
        return self.clock.now

    async def drain(self, *, raises: bool = False) -> list[Run]:
        """Run what is pending or due now, until nothing is, without moving the clock. Returns the attempts; with
        `raises`, the first error of a handler comes out here, after all have run."""
        before = len(self.runs)
        await self._work().tick()
        await self._work().run_pending()
        runs = self.runs[before:]
        if raises:
            for run in runs:
                if run.error is not None:
                    raise run.error
        return runs

    async def advance(self, duration: float | timedelta, *, work: bool = True) -> list[Run]:
        """Let time pass: what becomes due on the way runs at its instant, schedules fire, locks and results expire.
        With `work=False` time passes while no worker is there."""
        before = len(self.runs)
        target = self.clock.now_ms + math.ceil(round(seconds("duration", duration) * 1000, 6))
        if work:
            await self.drain()
            for _ in range(MOST_STEPS):
                due = await self._work().next_event_ms()
                if due > target:
                    break
                # Something that is due and still there (its queue is paused, say) must not hold up time.
                await self._move_to(max(math.ceil(due), min(self.clock.now_ms + 1, target)))
                await self.drain()
                if self.clock.now_ms >= target:
                    break
        await self._move_to(target)
        if work:
            await self.drain()
        return self.runs[before:]

    async def run_all(self, *, within: float | timedelta = timedelta(days=60)) -> list[Run]:
        """Move the clock from one due task to the next, until none waits any more: retries to their end. Schedules fire
        on the way, but does not wait for their next tick."""
        before = len(self.runs)
        ends = self.clock.now_ms + seconds("within", within) * 1000
        await self.drain()
        while (due := await self._work().next_event_ms(schedules=False)) < math.inf:
            if due > ends:
                raise AssertionError(f"tasks still wait after {within}")
            await self.advance(max(1, math.ceil(due) - self.clock.now_ms) / 1000)
        return self.runs[before:]

    async def _move_to(self, now_ms: int) -> None:
        passed = now_ms - self.clock.now_ms
        if passed > 0:
            self.clock.now_ms = now_ms
            await self._stage.age(passed)

    def crash(self, *, after: str | int | None = None, inside: str | None = None) -> None:
        """Let the worker of a durable handler crash once. `after`: right after the durable call of this name has
        returned, or after this number of calls in one attempt. `inside`: in the step of this name, when it has had its
        effect and its result is not kept yet. As in production, the crash counts as an attempt, and the task is
        retried."""
        if (after is None) == (inside is None):
            raise ConfigError("after", after, "either `after` or `inside`")
        if isinstance(after, int) and (isinstance(after, bool) or after < 1):
            raise ConfigError("after", after, "the name of a step or wait, or a number of calls from 1 on")
        planned = (
            PlannedCrash("inside", inside)
            if after is None and inside is not None
            else PlannedCrash("after", after or 0)
        )
        self._work().crashes.append(planned)

    @property
    def planned_crashes(self) -> int:
        """How many crashes have not happened yet."""
        return len(self._work().crashes)

    # What happened.

    def assert_enqueued(self, what: Expected, *, times: int | None = None, **options: Unpack[OptionArgs]) -> Sent:
        """`q.assert_enqueued(welcome.call(42), delay=60)`: it was sent, with these arguments if it is a call, and with
        these options; `times` says how often. Returns the last one."""
        __tracebackhide__ = True
        if times is not None and times < 1:
            raise ConfigError("times", times, "a number from 1 on; assert_not_enqueued is for none")
        found = matching([one for one in self.sent if one.created], what, dict(options))
        if times is not None and len(found) != times:
            raise AssertionError(
                f"{describe(what, dict(options))} was enqueued {len(found)} times, not {times}\n{self}"
            )
        if not found:
            raise AssertionError(f"{describe(what, dict(options))} was not enqueued\n{self}")
        return found[-1]

    def assert_not_enqueued(self, what: Expected, **options: Unpack[OptionArgs]) -> None:
        __tracebackhide__ = True
        found = matching([one for one in self.sent if one.created], what, dict(options))
        if found:
            raise AssertionError(f"{describe(what, dict(options))} was enqueued {len(found)} times\n{self}")

    async def count(self, state: str, queue: str | None = None) -> int:
        """How many tasks are in this state (pending, scheduled, retry, archived, completed, aggregating)."""
        infos = await self.app.inspector().stats()
        names = ("pending", "active", "scheduled", "retry", "archived", "completed", "aggregating")
        if state not in names:
            raise ConfigError("state", state, f"one of {', '.join(names)}", known=names)
        return sum(getattr(info, state) for info in infos if queue in (None, info.queue))

    def __str__(self) -> str:
        lines = [f"  sent {one}" for one in self.sent] + [f"  ran {one}" for one in self.runs]
        return "\n".join(lines) or "  nothing was sent"

    def _work(self) -> InlineWorker:
        if self._worker is None:
            raise ConfigError("app.test()", "not entered", "`async with app.test() as q:`")
        return self._worker

    def _hear(self, event: Event) -> None:
        if isinstance(event, TaskEnded):
            self.runs.append(run_of(event, self.now))

    def _on_fact(self, fact: dict[str, Any]) -> None:
        """What a handler sent from its process."""
        self.sent.append(unpack_sent(fact["sent"], self.now))

    async def _record(self, calls: Iterable[Call[Any]], send: Send) -> list[Handle[Any]]:
        calls = list(calls)
        handles = await send(calls)
        for call, handle in zip(calls, handles, strict=True):
            self.sent.append(Sent(handle.id, call.type, call.payload, call.options, handle.created, self.now))
        return handles


class BlockingRehearsal:
    """The same for synchronous tests: `with app.test() as q:`."""

    def __init__(self, rehearsal: Rehearsal, portal: BlockingPortal) -> None:
        self._rehearsal = rehearsal
        self._portal = portal
        self.clock, self.sent, self.runs = rehearsal.clock, rehearsal.sent, rehearsal.runs
        self.assert_enqueued, self.assert_not_enqueued = rehearsal.assert_enqueued, rehearsal.assert_not_enqueued

    @property
    def now(self) -> datetime:
        return self._rehearsal.now

    def drain(self, *, raises: bool = False) -> list[Run]:
        return self._portal.run(self._rehearsal.drain(raises=raises))

    def advance(self, duration: float | timedelta, *, work: bool = True) -> list[Run]:
        return self._portal.run(self._rehearsal.advance(duration, work=work))

    def run_all(self, *, within: float | timedelta = timedelta(days=60)) -> list[Run]:
        return self._portal.run(self._rehearsal.run_all(within=within))

    def crash(self, *, after: str | int | None = None, inside: str | None = None) -> None:
        self._rehearsal.crash(after=after, inside=inside)

    def count(self, state: str, queue: str | None = None) -> int:
        return self._portal.run(self._rehearsal.count(state, queue))

    def __str__(self) -> str:
        return str(self._rehearsal)
