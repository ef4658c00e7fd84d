"""Entry: what to enqueue and when. Book: the entries and providers of an app."""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from veredus.client.call import Call
from veredus.errors import ConfigError
from veredus.model.checks import seconds
from veredus.model.cron import CronLine, Schedule, parse_line
from veredus.wire.option_texts import option_texts

Missed = Literal["all", "once", "skip"]
MISSED: tuple[str, ...] = get_args(Missed)
_NAMESPACE = uuid.UUID("7d9a1c52-3f0e-5b64-9a55-0d5f6f0c8e21")
_INSTANTS = ("at", "deadline", "expires")


@dataclass(frozen=True, slots=True)
class Entry:
    """A schedule: `Entry("*/5 * * * *", sweep.call(), tz="Europe/Paris")`.

    `missed` is what happens to ticks that came due while no scheduler was running: "all" catches them up (those of the
    last hour, and older ones up to 100), "once" enqueues one task for all, "skip" none. `name` distinguishes entries
    that are otherwise the same.
    """

    spec: str
    call: Call[Any]
    _: KW_ONLY
    tz: str | None = None
    name: str | None = None
    missed: Missed = "all"
    line: CronLine = field(init=False, repr=False)
    id: str = field(init=False)
    """The same in every process that declares the same entry, also after a restart."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "line", parse_line(self.spec, self.tz))
        self._check()
        object.__setattr__(self, "id", self._identity())

    @property
    def schedule(self) -> Schedule:
        """When it fires."""
        return self.line.schedule

    @property
    def queue(self) -> str:
        """The queue of its tasks."""
        return self.call.options.queue

    def task_id(self, tick: int) -> str:
        """The id of a tick's task, so that no tick is enqueued twice."""
        return f"{self.id}:{tick}"

    def _check(self) -> None:
        if not isinstance(self.call, Call):
            raise ConfigError("call", self.call, "a call, such as task.call(...) or app.call('type', payload)")
        if self.missed not in MISSED:
            raise ConfigError("missed", self.missed, f"one of {', '.join(MISSED)}", known=MISSED)
        if self.name is not None and (not isinstance(self.name, str) or not self.name.strip()):
            raise ConfigError("name", self.name, "a text with one or more characters")
        options = self.call.options
        if options.task_id is not None:
            raise ConfigError("task_id", options.task_id, "none: each tick has its own id (see unique_for)")
        for name in _INSTANTS:
            value = getattr(options, name)
            if isinstance(value, datetime):
                raise ConfigError(name, value, "a duration: an instant would be in the past for later ticks")

    def _identity(self) -> str:
        payload = None if self.call.payload is None else self.call.payload.hex()
        options = sorted(option_texts(self.call.options))
        facts = [self.line.text, self.line.tz, self.call.type, payload, options, self.name]
        return str(uuid.uuid5(_NAMESPACE, json.dumps(facts)))


ProviderFunction = Callable[[], Iterable[Entry] | Awaitable[Iterable[Entry]]]


@dataclass(frozen=True, slots=True)
class Provider:
    """A function that returns entries, called every `interval` seconds."""

    function: ProviderFunction
    interval: float

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError("schedule provider", self.function, "a function that returns entries")
        object.__setattr__(self, "interval", seconds("interval", self.interval, endless=True))

    @property
    def name(self) -> str:
        function = self.function
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"


class Book:
    """The entries and providers that an app declares."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.providers: list[Provider] = []

    def __bool__(self) -> bool:
        return bool(self.entries or self.providers)

    def add(self, entry: Entry) -> Entry:
        if entry.id in self.entries:
            raise ConfigError("schedule", entry.spec, "an entry that differs from the others, at least by its name")
        self.entries[entry.id] = entry
        return entry

    def scope(self, tasks: Iterable[str]) -> str:
        """Schedulers with the same book share one leader. Other apps on the same server have their own."""
        facts = [sorted(self.entries), sorted(provider.name for provider in self.providers), sorted(tasks)]
        return str(uuid.uuid5(_NAMESPACE, json.dumps(facts)))
