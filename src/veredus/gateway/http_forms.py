"""Parses and checks the bodies and queries of the push API."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from starlette.requests import Request

from veredus.errors import ConfigError, VeredusError
from veredus.model.delivery import SyncHint
from veredus.model.nesting import MAX_DEPTH, too_deep

MAX_BODY = 8 * 1024 * 1024
TARGETS = ("session", "user", "openid", "group", "everyone")
HINTS = {
    "IMMEDIATE": SyncHint.IMMEDIATE,
    "BEFORE_RESPONSE": SyncHint.BEFORE_RESPONSE,
    "AFTER_RESPONSE": SyncHint.AFTER_RESPONSE,
}
FIELDS = {
    "target_type", "target_id", "msg_type", "title", "content", "data", "data64", "metadata", "sync_hint",
    "bind_client_seq_id", "ttl", "dedupe_key", "wait", "late", "on_fail",
}  # fmt: skip


class BadBody(VeredusError):
    """A body is invalid; the text names the field."""


def read_push(row: Any, where: str = "") -> dict[str, Any]:
    """A UnicastPushRequest as arguments of `app.push`. Raises BadBody that names the field."""
    if not isinstance(row, Mapping):
        raise BadBody(f"{where or 'body'}: expected an object, got {type(row).__name__}")
    for name in row:
        if name not in FIELDS:
            raise BadBody(str(ConfigError(f"{where}field", name, f"one of {', '.join(sorted(FIELDS))}", known=FIELDS)))
    kind = row.get("target_type")
    if kind not in TARGETS:
        raise BadBody(str(ConfigError(f"{where}target_type", kind, f"one of {', '.join(TARGETS)}", known=TARGETS)))
    call: dict[str, Any] = {"payload": _data(row, where)}
    target = row.get("target_id")
    if kind == "everyone":
        call["everyone"] = True
    elif not isinstance(target, str) or not target:
        raise BadBody(f"{where}target_id: got {target!r}, expected the {kind}'s id as a string")
    else:
        call["user" if kind == "openid" else kind] = target
    for name, key in (("msg_type", "type"), ("title", "title"), ("content", "content"), ("dedupe_key", "dedupe_key")):
        if (value := row.get(name)) is not None:
            call[key] = _typed(where, name, value, str, "a string")
    if (metadata := row.get("metadata")) is not None:
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise BadBody(f"{where}metadata: got {metadata!r}, expected an object of strings")
        call["metadata"] = metadata
    for name in ("ttl", "wait"):
        if (value := row.get(name)) is not None:
            call[name] = _typed(where, name, value, (int, float), "a number of seconds")
    _read_binding(row, where, kind, call)
    return call


def _read_binding(row: Mapping[str, Any], where: str, kind: str, call: dict[str, Any]) -> None:
    given = row.get("sync_hint", 0)
    hint = HINTS.get(given) if isinstance(given, str) else given
    if isinstance(hint, bool) or hint not in (0, 1, 2):
        raise BadBody(f"{where}sync_hint: got {given!r}, expected 0, 1, 2 or one of {', '.join(HINTS)}")
    rid = row.get("bind_client_seq_id")
    if hint and kind != "session":
        raise BadBody(
            f"{where}sync_hint: got {given!r}, expected 0 for target_type {kind}: a request belongs to one session"
        )
    if hint and (not isinstance(rid, int) or isinstance(rid, bool) or rid < 1):
        raise BadBody(f"{where}bind_client_seq_id: got {rid!r}, expected the request's number, which sync_hint needs")
    if hint:
        call["sync_hint"] = SyncHint(hint)
        call["bind"] = rid
        for name in ("late", "on_fail"):
            if (value := row.get(name)) is not None:
                call[name] = _typed(where, name, value, str, "a string")


def _data(row: Mapping[str, Any], where: str) -> Any:
    """`data` is any JSON value; `data64` has bytes as base64."""
    if row.get("data64") is None:
        return row.get("data")
    try:
        return base64.b64decode(row["data64"], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise BadBody(f"{where}data64: expected bytes as base64") from None


def _typed(where: str, name: str, value: Any, kind: Any, expected: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadBody(f"{where}{name}: got {value!r}, expected {expected}")
    return value


def read_disconnect(given: Any) -> dict[str, Any]:
    """Arguments of `app.disconnect`, which checks the values."""
    call = _object(given, ("session", "user", "reason"))
    return {name: _typed("", name, value, str, "a string") for name, value in call.items()}


def read_revoke(given: Any) -> dict[str, Any]:
    """Arguments of `app.revoke`; `before` is Unix seconds or an ISO 8601 string."""
    call = _object(given, ("user", "before", "keep"))
    if "user" not in call:
        raise BadBody("user: missing, expected the user's name")
    if isinstance(before := call.get("before"), str):
        try:
            call["before"] = datetime.fromisoformat(before)
        except ValueError:
            raise BadBody(
                f"before: got {before!r}, expected Unix seconds or an instant such as 2026-11-16T09:30:00Z"
            ) from None
    return call


def read_members(query: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `app.members`."""
    call = _object(query, ("group", "after", "limit"))
    if "group" not in call:
        raise BadBody("group: missing, expected the group's name")
    limit = call.get("limit", "100")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 9):
        raise BadBody(f"limit: got {limit!r}, expected a whole number")
    return {**call, "limit": int(limit)}


def _object(given: Any, known: Sequence[str]) -> dict[str, Any]:
    """The fields that are not null."""
    if not isinstance(given, Mapping):
        raise BadBody(f"body: expected an object, got {type(given).__name__}")
    for name in given:
        if name not in known:
            raise BadBody(str(ConfigError("field", name, f"one of {', '.join(known)}", known=known)))
    return {name: value for name, value in given.items() if value is not None}


async def read_json(request: Request) -> Any:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise BadBody(f"body: more than {MAX_BODY:,} bytes")
    found = bytes(data)
    if too_deep(found):
        raise BadBody(f"body: nested more than {MAX_DEPTH} deep")
    try:
        return json.loads(found)
    except (ValueError, RecursionError) as exc:
        raise BadBody(f"body: not JSON: {exc}") from None
