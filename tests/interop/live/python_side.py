"""Our side of the live tests: an app whose handler does what the payload says, as the Go program's does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.interop.live.peer import GoPeer
from veredus import App, Job, RevokeTask, SkipRetry
from veredus.model.info import TaskInfo


class PythonSide:
    """`began` and `ran` have a job for every attempt. No handler returns before `may_end` is set, as it is at first."""

    def __init__(self, url: str, *, types: str = "py:*", retry_delay: float = 0.2) -> None:
        self.app = App(url)
        self.began: list[Job] = []
        self.ran: list[Job] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

        @self.app.handler(types, queue="shared", retry_delay=retry_delay)
        async def run(job: Job) -> Any:
            self.began.append(job)
            try:
                result = await behave(job)
                await self.may_end.wait()
                return result
            finally:
                self.ran.append(job)

    def attempts(self, task_id: str) -> int:
        return sum(job.id == task_id for job in self.began)


async def behave(job: Job) -> Any:
    """What a payload asks its handler to do, as `Behaviour` in server.go."""
    try:
        wanted = json.loads(job.payload)
        assert isinstance(wanted, dict)
    except (ValueError, AssertionError):
        return None
    if wanted.get("times") and job.retried >= wanted["times"]:
        return wanted.get("result") or None
    match wanted.get("behave"):
        case "fail":
            raise ValueError("told to fail")
        case "skip":
            raise SkipRetry("told to skip")
        case "revoke":
            raise RevokeTask("told to revoke")
        case "sleep" | "wait":
            await asyncio.sleep(wanted["ms"] / 1000)
    return wanted.get("result") or None


def facts(info: TaskInfo) -> dict[str, Any]:
    """What our inspector says of a task, in the words of the Go program."""
    return {
        "id": info.id, "queue": info.queue, "type": info.type, "payload": info.payload, "state": info.state,
        "max_retry": info.max_retry, "retried": info.retried, "error": info.last_error, "failed_at": info.last_failed,
        "timeout": info.timeout, "deadline": info.deadline, "group": info.group, "next_at": info.next_ms // 1000,
        "orphaned": info.is_orphaned, "retention": info.retention, "completed_at": info.completed,
        "result": info.result, "headers": dict(info.headers),
    }  # fmt: skip


async def same_listing(app: App, peer: GoPeer, queue: str, state: str, group: str = "") -> list[dict[str, Any]]:
    """Both inspectors list the same tasks in the same order, field by field. Returns Go's listing."""
    theirs = await peer.list(queue, state, group)
    ours = [facts(info) for info in await app.inspector().tasks(queue, state, group=group or None, size=1000)]
    for their, our in zip(theirs, ours, strict=True):
        if state in ("scheduled", "retry"):  # ours to the millisecond, Go's score rounded up to the second
            assert our.pop("next_at") in (their["next_at"], their["next_at"] - 1)
            our["next_at"] = their["next_at"]
        elif state == "pending":  # "now", taken at two moments
            our["next_at"] = their["next_at"]
        assert our == their
    return theirs
