"""Redaction: the app's own rule about what of payloads and errors is stored and shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sensitive:
    """What a text is that may have to be redacted."""

    kind: str
    """`payload`, `result`, `error`, `traceback` or `log`."""
    type: str
    """The task's type."""
    queue: str = ""
    task_id: str = ""


Redact = Callable[[str, Sensitive], str]
"""Returns the text as it may be stored and shown. It is called in workers, in commands and in the dashboard."""


def redacted(redact: Redact | None, text: str, what: Sensitive) -> str:
    """The text after the app's hook. If the hook fails, nothing of the text is kept."""
    if redact is None or not text:
        return text
    try:
        found = redact(text, what)
    except BaseException as exc:  # a hook may raise anything, and must not reveal what it should hide
        return f"(redacted: the hook raised {type(exc).__name__})"
    return found if isinstance(found, str) else f"(redacted: the hook returned {type(found).__name__}, not a text)"


def redacted_bytes(redact: Redact | None, data: bytes, what: Sensitive) -> bytes:
    """The same for a payload or a result. Bytes that are not UTF-8 reach the hook with replacements."""
    if redact is None or not data:
        return data
    return redacted(redact, data.decode("utf-8", "replace"), what).encode("utf-8", "replace")
