"""What the hash of a task holds beside its message: progress, lease, order key and limit."""

from __future__ import annotations

from typing import Any

from veredus.model.info import instant_text
from veredus.model.task_status import read_progress
from veredus.store.inspect.inspect_part import InspectPart, data, text
from veredus.wire import keys, lease_owner
from veredus.wire.times import count_of, whole

_FIELDS = "progress cancel held pending_since expires_at order_key order_hold limit_key limited_by unique_key"


class Details(InspectPart):
    async def of(self, queue: str, task_id: str) -> dict[str, Any]:
        """All details in one round trip; None or empty if the task has no such detail."""
        names = _FIELDS.split()
        found, until = await self.redis.command_each(
            [
                ("HMGET", data(keys.task(queue, task_id)), *names),
                ("ZSCORE", data(keys.lease(queue)), data(task_id)),
            ]
        )
        if isinstance(found, BaseException):
            found = [None] * len(names)
        fields = dict(zip(names, found, strict=True))
        return {
            "progress": _progress(fields["progress"]),
            "cancelling": _text(fields["cancel"]),
            "lease": None if not isinstance(until, bytes) else _lease(fields["held"], until, await self.server_ms()),
            "pending_since": instant_text(count_of(fields["pending_since"])),
            "expires_at": instant_text(count_of(fields["expires_at"]) * 1_000_000),
            "order_key": _text(fields["order_key"]),
            "order_hold": bool(fields["order_hold"]),
            "limit_key": _text(fields["limit_key"]),
            "limited_by": _text(fields["limited_by"]),
            "unique_key": _text(fields["unique_key"]),
        }


def _lease(held: bytes | None, until: bytes, now_ms: int) -> dict[str, Any]:
    owner = lease_owner.owner_under(held, until)
    return {
        "owner": owner or "",
        "until": instant_text(whole(until) * 1_000_000_000),
        "seconds_left": round(float(until) - now_ms / 1000, 3),
        "ours": owner is not None,
    }


def _progress(found: Any) -> dict[str, Any] | None:
    progress = read_progress(found) if found else None
    if progress is None:
        return None
    at = instant_text(int(progress.at.timestamp() * 1000) * 1_000_000)
    return {"share": progress.share, "note": progress.note, "at": at}


def _text(found: Any) -> str:
    return text(found) if isinstance(found, bytes) else ""
