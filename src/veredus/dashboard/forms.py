"""Parses and checks query parameters and JSON bodies. Errors name the field."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request

from veredus.errors import ConfigError
from veredus.model.nesting import MAX_DEPTH, too_deep

MAX_BODY = 8 * 1024 * 1024
MAX_IDS = 1_000
MAX_FIELDS = 50


class Form:
    """The fields of a request. Unknown fields are refused, known ones are checked when read."""

    def __init__(self, values: Mapping[str, Any], known: Sequence[str]) -> None:
        for name in values:
            if name not in known:
                raise ConfigError("field", name, f"one of {', '.join(known) or 'none'}", known=known)
        self.values = values

    def has(self, name: str) -> bool:
        return self.values.get(name) not in (None, "")

    def text(self, name: str, default: str | None = None) -> str:
        """Required and not empty, unless there is a default."""
        value = self.values.get(name)
        if value is None or (value == "" and default is None):
            if default is None:
                raise ConfigError(name, value, "a text")
            return default
        if not isinstance(value, str):
            raise ConfigError(name, value, "a text")
        return value

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if isinstance(value, str):
            value = {"true": True, "1": True, "false": False, "0": False, "": False}.get(value, value)
        if not isinstance(value, bool):
            raise ConfigError(name, value, "true or false")
        return value

    def number(self, name: str, default: int, least: int, most: int) -> int:
        value = self.values.get(name, default)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(name, value, f"a whole number from {least:,} to {most:,}")
        return value

    def seconds(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 3650 * 86_400:
            raise ConfigError(name, value, "seconds from 0 to ten years")
        if not math.isfinite(value):
            raise ConfigError(name, value, "a number of seconds")
        return float(value)

    def instant(self, name: str) -> datetime | None:
        value = self.values.get(name)
        if value is None:
            return None
        try:
            found = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            raise ConfigError(name, value, "a time such as 2026-11-16T09:30:00Z") from None
        if found.tzinfo is None:
            raise ConfigError(name, value, "a time with its zone, such as 2026-11-16T09:30:00Z")
        return found

    def ids(self, name: str = "ids") -> list[str]:
        value = self.values.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
            raise ConfigError(name, value if not isinstance(value, list) else "a list", "a list of one or more ids")
        if len(value) > MAX_IDS:
            raise ConfigError(name, f"{len(value):,} ids", f"at most {MAX_IDS:,}; start a job for more")
        return list(dict.fromkeys(value))

    def content(self) -> bytes | None:
        """`payload` is text, `payload64` is base64; neither means no payload."""
        if self.values.get("payload64") is not None:
            try:
                return base64.b64decode(self.values["payload64"], validate=True)
            except (binascii.Error, TypeError, ValueError):
                raise ConfigError("payload64", "(hidden)", "bytes as base64") from None
        value = self.values.get("payload")
        if value is None:
            return None
        if not isinstance(value, str):
            raise ConfigError("payload", value, "a text, stored as it is")
        return value.encode("utf-8", "surrogateescape")


def pairs_of(text: str) -> list[tuple[str, str]]:
    """The fields of a query string. Bytes that are not UTF-8 survive."""
    try:
        return parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=MAX_FIELDS)
    except ValueError:
        raise ConfigError("query", "too many fields", f"at most {MAX_FIELDS}") from None


def query_of(text: str, known: Sequence[str]) -> Form:
    return Form(dict(pairs_of(text)), known)


async def body_of(request: Request, known: Sequence[str]) -> Form:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ConfigError("content-type", kind, "application/json")
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > MAX_BODY:
            raise ConfigError("body", "too long", f"at most {MAX_BODY:,} bytes")
    if too_deep(bytes(found)):
        raise ConfigError("body", "nested too deep", f"at most {MAX_DEPTH} levels")
    try:
        value = json.loads(bytes(found) or b"{}")
    except (ValueError, RecursionError):
        raise ConfigError("body", "not JSON", "a JSON object") from None
    if not isinstance(value, dict):
        raise ConfigError("body", type(value).__name__, "a JSON object")
    return Form(value, known)
