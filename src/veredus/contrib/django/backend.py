"""A backend for Django's Tasks: deferred tasks, three priority bands, results."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, Unpack

from django.core import checks
from django.db import transaction

from veredus.app import App
from veredus.client.call import Call
from veredus.contrib.django import running
from veredus.contrib.django.framework import BaseTaskBackend, TaskResultDoesNotExist, signals
from veredus.contrib.django.records import PREFIX, DjangoTaskRecord, headers_of, instant, new_result, result_of, type_of
from veredus.errors import ConfigError, TaskNotFound, VeredusError, near
from veredus.model.build import new_id
from veredus.model.priority import parse_queues
from veredus.worker.config import WorkerSettings
from veredus.worker.worker import Worker

logger = logging.getLogger("veredus.django")

OPTIONS = {"app", "url", "max_retry", "timeout", "retention", "on_commit"}
BANDS = {":high": 100, "": 10, ":low": 1}
"""Suffixes and weights of the queues for Django's priorities above 0, equal to 0, and below 0."""
RETENTION = 86_400
"""How long results can be read, in seconds."""


class VeredusBackend(BaseTaskBackend):  # type: ignore[misc]
    """`TASKS = {"default": {"BACKEND": "veredus.contrib.django.VeredusBackend", "OPTIONS": {"url": "redis://..."}}}`.

    Options: `url` of Redis, or `app` ("module:attribute") for your own App; `max_retry` (25), `timeout` (1800 s),
    `retention` of results (86400 s), `on_commit` (False; True enqueues when the transaction commits).
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        for name in self.options:
            if name not in OPTIONS:
                allowed = f"one of {', '.join(sorted(OPTIONS))}"
                raise ConfigError(f"TASKS[{alias!r}]['OPTIONS']", name, allowed, known=OPTIONS)

    @property
    def app(self) -> App:
        """The app that enqueues and runs these tasks."""
        return _app(self.options.get("app"), self.options.get("url"))

    # Sending.

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        call, result = self._prepare(task, args, kwargs)
        if self.options.get("on_commit"):
            transaction.on_commit(lambda: self._send(call, result))
        else:
            self._send(call, result)
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        if self.options.get("on_commit"):  # transactions are bound to a thread
            return await super().aenqueue(task, args, kwargs)
        call, result = self._prepare(task, args, kwargs)
        await self.app.send(call)
        await signals.task_enqueued.asend(type(self), task_result=result)
        return result

    def _send(self, call: Call[Any], result: Any) -> None:
        self.app.send_sync(call)
        signals.task_enqueued.send(type(self), task_result=result)

    def _prepare(self, task: Any, args: Any, kwargs: Any) -> tuple[Call[Any], Any]:
        self.validate_task(task)
        now = self.app.clock.time()
        result = new_result(task, new_id(), self.alias, args, kwargs, DjangoTaskRecord(), enqueued_at=instant(now))
        options: dict[str, Any] = {
            "queue": task.queue_name + band_of(task.priority),
            "task_id": result.id,
            "headers": headers_of(task, self.alias, now),
            "retention": self.options.get("retention", RETENTION),
            "at": _aware(task.run_after),
        }
        options |= {name: self.options[name] for name in ("max_retry", "timeout") if name in self.options}
        payload = {"args": result.args, "kwargs": result.kwargs}
        return self.app.call(type_of(task, iscoroutinefunction(task.func)), payload, **options), result

    # Results.

    def get_result(self, result_id: str) -> Any:
        return self.app.blocking(self._find(result_id))

    async def aget_result(self, result_id: str) -> Any:
        return await self._find(result_id)

    async def _find(self, result_id: str) -> Any:
        inspector = self.app.inspector()
        try:
            for queue in await inspector.queues_of(str(result_id)):
                info = await inspector.task(queue, str(result_id))
                if info.type.startswith(PREFIX):
                    return result_of(info)
        except TaskNotFound:
            pass
        raise TaskResultDoesNotExist(result_id)

    # Working.

    def worker(
        self, queues: Mapping[str, int] | Sequence[str] | str | None = None, **settings: Unpack[WorkerSettings]
    ) -> Worker:
        """A worker for the queues of this backend, or for those named, with their priority bands."""
        given = self.worker_queues() if queues is None else self.with_bands(parse_queues(queues))
        return self.app.worker(given, **settings)

    def worker_queues(self) -> dict[str, int]:
        return self.with_bands(dict.fromkeys(sorted(self.queues) or ["default"], 1))

    def with_bands(self, queues: Mapping[str, int]) -> dict[str, int]:
        """Each queue with its priority bands; a band that is named itself stays one. Warns of queues that neither the
        backend nor its app has."""
        found: dict[str, int] = {}
        known = {*self.queues, *(task.options.queue for task in self.app.tasks.values())}
        for name, weight in queues.items():
            base, _, band = name.rpartition(":")
            if base and f":{band}" in BANDS:
                found[name] = max(weight, found.get(name, 0))
            else:
                base = name
                found |= {name + suffix: weight * share for suffix, share in BANDS.items()}
            if self.queues and base not in known:
                logger.warning(
                    "queue %r is not in TASKS[%r]['QUEUES'], which has %s: no task is enqueued there%s",
                    base, self.alias, ", ".join(sorted(self.queues)), near(base, known),
                )  # fmt: skip
        return found

    def check(self, **kwargs: Any) -> list[Any]:
        """For `manage.py check`: check the settings without connecting."""
        try:
            _ = self.app
        except (VeredusError, ImportError, AttributeError) as exc:
            return [checks.Error(f"TASKS[{self.alias!r}]: {exc}", id="veredus.E001")]
        return []


def band_of(priority: int) -> str:
    return ":high" if priority > 0 else ":low" if priority < 0 else ""


def _aware(moment: datetime | None) -> datetime | None:
    """Without USE_TZ, Django's datetimes are naive and local."""
    return moment.astimezone() if moment is not None and moment.tzinfo is None else moment


@functools.cache
def _app(path: str | None, url: str | None) -> App:
    """One app per process: Django creates a backend per thread."""
    if path is None:
        app = App(url)
    else:
        module, _, attribute = path.partition(":")
        if url is not None or not attribute:
            raise ConfigError("app", path, "module:attribute, and no url beside it")
        app = getattr(import_module(module), attribute)
        if not isinstance(app, App):
            raise ConfigError("app", path, f"an App; it is a {type(app).__name__}")
    running.serve_tasks(app)
    return app
