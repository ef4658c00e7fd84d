"""What goes out: JSON that no cache keeps and no browser runs, and every error as a code, a kind and a sentence."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from starlette.responses import Response

from veredus.errors import (
    ArchiveFull,
    AuthError,
    ConfigError,
    DuplicateTask,
    GroupNotFound,
    LaneNotHeld,
    NotReady,
    PayloadError,
    QueueNotEmpty,
    QueueNotFound,
    ScheduleNotFound,
    ServerNotFound,
    StoreError,
    TaskIdConflict,
    TaskNotFound,
    VeredusError,
    WrongState,
    near,
)

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""On every answer, whatever it is."""


class NotFound(VeredusError):
    """Something that only the dashboard has a name for is not there: a session, a job."""

    def __init__(self, what: str, name: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"no {what} {name!r}{near(name, known)}")


# error -> status, kind; the first that fits counts
_KINDS: tuple[tuple[type[VeredusError], int, str], ...] = (
    (QueueNotFound, 404, "queue_not_found"),
    (TaskNotFound, 404, "task_not_found"),
    (GroupNotFound, 404, "group_not_found"),
    (ScheduleNotFound, 404, "schedule_not_found"),
    (ServerNotFound, 404, "server_not_found"),
    (NotFound, 404, "not_found"),
    (LaneNotHeld, 409, "lane_not_held"),
    (WrongState, 409, "wrong_state"),
    (QueueNotEmpty, 409, "queue_not_empty"),
    (ArchiveFull, 409, "archive_full"),
    (DuplicateTask, 409, "duplicate_task"),
    (TaskIdConflict, 409, "task_id_conflict"),
    (ConfigError, 400, "bad_request"),
    (PayloadError, 400, "bad_request"),
    (AuthError, 502, "redis_refused"),
    (NotReady, 503, "redis_not_ready"),
    (StoreError, 503, "redis_unreachable"),
    (VeredusError, 500, "failed"),
)


class Json(Response):
    """Names that are no UTF-8 travel as escapes, so they come back as they were."""

    media_type = "application/json"

    def __init__(self, value: Any, status_code: int = 200, headers: dict[str, str] | None = None) -> None:
        super().__init__(value, status_code, {"cache-control": "no-store", **(headers or {})})

    def render(self, content: Any) -> bytes:
        return dumps(content).encode()


def dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def problem(status: int, kind: str, message: str, **more: Any) -> Json:
    return Json({"error": kind, "message": message, **more}, status)


def described(exc: VeredusError) -> tuple[int, dict[str, Any]]:
    """An error of ours as a status and what the client is told."""
    status, kind = next((status, kind) for error, status, kind in _KINDS if isinstance(exc, error))
    told: dict[str, Any] = {"error": kind, "message": str(exc)}
    if isinstance(exc, ConfigError):
        told["field"] = exc.field
    if isinstance(exc, ArchiveFull):
        told |= {"tasks": exc.tasks, "excess": exc.excess, "limit": exc.limit}
        told["message"] = str(exc).replace("allow it with drop_excess=True", "allow it with drop_excess")
    return status, told
