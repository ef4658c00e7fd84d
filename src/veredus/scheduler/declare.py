"""The part of an app that declares schedules: `@app.cron`, `app.schedule` and `app.schedule_provider`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack, cast

from veredus.client.call import Call
from veredus.client.declaring import TaskSettings, Then
from veredus.client.task import P, R, Task
from veredus.errors import ConfigError, PayloadError
from veredus.model.cron import parse_line
from veredus.scheduler.entries import Book, Entry, Missed, Provider, ProviderFunction

if TYPE_CHECKING:
    from veredus.client.client import Client
    from veredus.scheduler.scheduler import Scheduler
    from veredus.scheduler.service import Service
    from veredus.store.connection.redis import Redis

AnyTask = Task[..., Any, Any]


class CronDeclarations:
    """The part of an app, and of a router, that declares tasks with their schedules."""

    if TYPE_CHECKING:

        def _declare(self, function: Callable[..., Any], *, then: Then | None = ..., **settings: Any) -> AnyTask: ...

    def cron(
        self,
        spec: str,
        *,
        tz: str | None = None,
        missed: Missed = "all",
        name: str | None = None,
        **settings: Unpack[TaskSettings],
    ) -> Callable[[Callable[P, R]], Task[P, R, Any]]:
        """Declare a task and when it is sent: `@app.cron("*/5 * * * *", tz="Europe/Paris", queue="maintenance")`.

        `spec` is a cron line, a name such as `@daily`, or `@every 1h30m`. `missed` is what happens to ticks while no
        scheduler was running: "all", "once" or "skip". The other settings are those of `task`.
        """
        parse_line(spec, tz)  # raises at the decorator

        def plan(app: ScheduleDeclarations, task: AnyTask) -> None:
            app.schedules.add(Entry(spec, _call_without_arguments(task), tz=tz, missed=missed))

        def declare(function: Callable[P, R]) -> Task[P, R, Any]:
            return cast("Task[P, R, Any]", self._declare(function, name=name, then=plan, **settings))

        return declare


class ScheduleDeclarations(CronDeclarations):
    """The part of an app that declares schedules."""

    schedules: Book
    tasks: dict[str, Task[..., Any, Any]]
    max_payload: int

    if TYPE_CHECKING:

        def open_redis(self, name: str = ...) -> Redis: ...

        def load(self) -> None: ...

    def schedule(
        self, spec: str, call: Call[Any], *, tz: str | None = None, name: str | None = None, missed: Missed = "all"
    ) -> Entry:
        """Send a call on a schedule: `app.schedule("@every 30s", poll.call("eu"))`. For a type that only a Go service
        defines use `app.call("report:daily", {"region": "eu"}, queue="reports")`."""
        entry = Entry(spec, call, tz=tz, name=name, missed=missed)
        call.check_size(self.max_payload)
        return self.schedules.add(entry)

    def schedule_provider(self, function: ProviderFunction, *, interval: float = 180) -> None:
        """Call this function now and every `interval` seconds for more entries. It returns an iterable of
        `Entry(spec, call, ...)`. If it raises, its last entries stay."""
        self.schedules.providers.append(Provider(function, interval))

    def scheduler(self, **settings: Any) -> Service:
        """A scheduler without a worker: `app.scheduler().run()`."""
        from veredus.scheduler.service import Service

        self.load()
        return Service(self, **settings)

    def scheduler_on(self, client: Client) -> Scheduler:
        """The scheduler that runs as a role of a worker."""
        from veredus.scheduler.scheduler import Scheduler

        return Scheduler(client, self.schedules, self.schedule_scope())

    def schedule_scope(self) -> str:
        """Processes with the same schedules and tasks share one leader."""
        return self.schedules.scope(self.tasks)


def _call_without_arguments(task: Task[..., Any, Any]) -> Call[Any]:
    try:
        return task.call()
    except PayloadError as exc:
        allowed = "a function without required parameters; for others use app.schedule(spec, task.call(...))"
        raise ConfigError("function", task.name, allowed) from exc
