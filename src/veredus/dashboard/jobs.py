"""Background jobs: one request starts a job, others watch and stop it."""

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
MAX_ENDED = 30
"""Ended jobs that stay visible."""

Work = Callable[["BackgroundJob"], Awaitable[dict[str, Any]]]


class TooManyJobs(VeredusError):
    """The limit of running jobs is reached."""


@dataclass(slots=True, kw_only=True)
class BackgroundJob:
    """One job. `progress` and `stop` are passed to the inspector's bulk methods."""

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
    findings: Any = None
    """The findings of a diagnosis, for a later repair. Not sent to clients."""

    def progress(self, done: int, total: int) -> None:
        self.done, self.total = done, total

    def as_dict(self) -> dict[str, Any]:
        names = "id verb title queue status stoppable done total result error"
        values = {name: getattr(self, name) for name in names.split()}
        return values | {"begun": _text(self.begun), "ended": _text(self.ended)}


class Jobs:
    def __init__(self) -> None:
        self._jobs: dict[str, BackgroundJob] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, job: BackgroundJob, work: Work) -> BackgroundJob:
        if sum(one.status in RUNNING for one in self._jobs.values()) >= MOST_RUNNING:
            raise TooManyJobs(f"{MOST_RUNNING} jobs run already; wait for one or stop it")
        ended = [one.id for one in self._jobs.values() if one.status not in RUNNING]
        for name in ended[: max(0, len(ended) - MAX_ENDED + 1)]:
            del self._jobs[name]
        self._jobs[job.id] = job
        task = asyncio.get_running_loop().create_task(self._run(job, work), name=f"dashboard job {job.id}")
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))
        return job

    def list(self) -> list[BackgroundJob]:
        """The newest first."""
        return list(self._jobs.values())[::-1]

    def get(self, job_id: str) -> BackgroundJob:
        if job_id not in self._jobs:
            raise NotFound("job", job_id, self._jobs)
        return self._jobs[job_id]

    def stop(self, job_id: str) -> BackgroundJob:
        """Stop the job after its current batch."""
        job = self.get(job_id)
        if not job.stoppable:
            raise ConfigError("id", job_id, "a job that can be stopped; this one cannot")
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

    async def _run(self, job: BackgroundJob, work: Work) -> None:
        status = "failed"
        try:
            job.result = await work(job)
            status = "stopped" if job.result.get("stopped") else "done"
        except VeredusError as exc:
            job.error = described(exc)[1]
        except Exception:  # a bug: it is logged, and the page shows that the job failed
            logger.exception("the job %r failed", job.title)
            job.error = {"error": "failed", "message": "something went wrong; the server's log has the details"}
        finally:
            if status == "failed" and job.error is None:
                job.error = {"error": "ended", "message": "the dashboard ended before the job did"}
            job.status, job.ended = status, SYSTEM.time()


def _text(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds") if seconds else None
