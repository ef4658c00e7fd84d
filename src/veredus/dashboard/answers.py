"""JSON responses, security headers, and errors as a status, a kind and a message."""

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
    NotReady,
    OrderKeyNotHeld,
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
"""Sent with every response."""


class NotFound(VeredusError):
    """A session or job that does not exist."""

    def __init__(self, what: str, name: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"no {what} {name!r}{near(name, known)}")


# error class -> status, kind; the first match counts
_KINDS: tuple[tuple[type[VeredusError], int, str], ...] = (
    (QueueNotFound, 404, "queue_not_found"),
    (TaskNotFound, 404, "task_not_found"),
    (GroupNotFound, 404, "group_not_found"),
    (ScheduleNotFound, 404, "schedule_not_found"),
    (ServerNotFound, 404, "server_not_found"),
    (NotFound, 404, "not_found"),
    (OrderKeyNotHeld, 409, "order_key_not_held"),
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
    """JSON in ASCII: names that are not UTF-8 survive as escapes."""

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
    """The status and JSON body for an error."""
    status, kind = next((status, kind) for error, status, kind in _KINDS if isinstance(exc, error))
    body: dict[str, Any] = {"error": kind, "message": str(exc)}
    if isinstance(exc, ConfigError):
        body["field"] = exc.field
    if isinstance(exc, ArchiveFull):
        body |= {"tasks": exc.tasks, "excess": exc.excess, "limit": exc.limit}
        body["message"] = str(exc).replace("allow it with drop_excess=True", "allow it with drop_excess")
    return status, body
