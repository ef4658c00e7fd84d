"""Long work on the server's side: begun by one request, watched and stopped by others."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from veredus.clock import SYSTEM
from veredus.dashboard.answers import NotFound, described
from veredus.errors import ConfigError, VeredusError

logger = logging.getLogger("veredus.dashboard")

RUNNING = ("running", "stopping")
MOST_RUNNING = 8
KEPT = 30
"""Ended jobs that can still be looked at."""

Work = Callable[["Job"], Awaitable[dict[str, Any]]]


class TooManyJobs(VeredusError):
    """So many jobs run that another one has to wait."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One piece of work. `progress` and `stop` are what the inspector's verbs for many take."""

    verb: str
    title: str
    queue: str = ""
    stoppable: bool = True
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    status: str = "running"
    done: int = 0
    total: int = 0
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    begun: float = field(default_factory=SYSTEM.time)
    ended: float = 0.0
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    kept: Any = None
    """What a later request may need of it, and no client gets: the findings of a diagnosis."""

    def progress(self, done: int, total: int) -> None:
        self.done, self.total = done, total

    def as_dict(self) -> dict[str, Any]:
        names = "id verb title queue status stoppable done total result error"
        values = {name: getattr(self, name) for name in names.split()}
        return values | {"begun": _text(self.begun), "ended": _text(self.ended)}


class Jobs:
    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, job: Job, work: Work) -> Job:
        if sum(one.status in RUNNING for one in self._jobs.values()) >= MOST_RUNNING:
            raise TooManyJobs(f"{MOST_RUNNING} jobs run already; wait for one or stop it")
        ended = [one.id for one in self._jobs.values() if one.status not in RUNNING]
        for name in ended[: max(0, len(ended) - KEPT + 1)]:
            del self._jobs[name]
        self._jobs[job.id] = job
        task = asyncio.get_running_loop().create_task(self._run(job, work), name=f"dashboard job {job.id}")
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))
        return job

    def list(self) -> list[Job]:
        """The newest first."""
        return list(self._jobs.values())[::-1]

    def get(self, job_id: str) -> Job:
        if job_id not in self._jobs:
            raise NotFound("job", job_id, self._jobs)
        return self._jobs[job_id]

    def stop(self, job_id: str) -> Job:
        """It ends after the portion that is under way."""
        job = self.get(job_id)
        if not job.stoppable:
            raise ConfigError("id", job_id, "a job that can be stopped; this one ends by itself")
        if job.status == "running":
            job.status = "stopping"
            job.stop.set()
        return job

    async def close(self) -> None:
        for job in self._jobs.values():
            job.stop.set()
        running = list(self._tasks.values())
        if running:
            await asyncio.wait(running, timeout=2.0)
        for task in running:
            task.cancel()

    async def _run(self, job: Job, work: Work) -> None:
        status = "failed"
        try:
            job.result = await work(job)
            status = "stopped" if job.result.get("stopped") else "done"
        except VeredusError as exc:
            job.error = described(exc)[1]
        except Exception:
            logger.exception("the job %r failed", job.title)
            job.error = {"error": "failed", "message": "something went wrong; the server's log has the details"}
        finally:
            if status == "failed" and job.error is None:
                job.error = {"error": "ended", "message": "the dashboard ended before the job did"}
            job.status, job.ended = status, SYSTEM.time()


def _text(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds") if seconds else None
