"""Sends exceptions from a handler's process to the worker as JSON. They are rebuilt without running their code."""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from typing import Any

from veredus.errors import RevokeTask, SkipRetry, VeredusError
from veredus.handlers.only_retry import only_retry
from veredus.model.failure import REMOTE, describe, place_of, traceback_of
from veredus.model.retry import FINAL, RetryRule
from veredus.model.verdict import wraps

MAX_TEXT = 32 * 1024
"""Characters of an error's text that are sent."""
MAX_CAUSES = 8
"""The longest chain of causes that is sent."""
MAIN = "__mp_main__"
"""The name of the main script's module in a handler's process, as in Python's multiprocessing."""


class RemoteError(VeredusError):
    """An error of a handler's process whose class cannot be rebuilt here. `type(error).__name__` is the name of the
    original class."""


def pack_error(error: BaseException, rule: RetryRule | None = None) -> list[dict[str, Any]]:
    """The error and its causes, with description, traceback and place, and whether it is final by the rule of its
    task."""
    error = only_retry(error) or error
    chain: list[dict[str, Any]] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(chain) < MAX_CAUSES:
        seen.add(id(current))
        chain.append(_pack_one(current))
        current = _steering(current) or current.__cause__
    chain[0]["described"] = describe(error)
    chain[0]["traceback"] = traceback_of(error)
    chain[0]["place"] = place_of(error)
    if rule is not None:
        chain[0]["final"] = rule.is_final(error, raised=True)
    chain[0]["pid"] = os.getpid()
    return chain


def _steering(error: BaseException) -> BaseException | None:
    """Of a group, the error that says what becomes of the task."""
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return next((one for one in members if wraps(one, SkipRetry) or wraps(one, RevokeTask)), None)


def rebuild(chain: list[dict[str, Any]]) -> BaseException:
    """The original classes if this process has them and plain values can build them, otherwise RemoteError."""
    errors = [_rebuild_one(one) for one in chain]
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    first = errors[0]
    if chain[0]["traceback"]:
        first.add_note(f"In process {chain[0]['pid']}:\n{chain[0]['traceback']}")
    if "final" in chain[0]:
        setattr(first, FINAL, chain[0]["final"])
    setattr(first, REMOTE, (chain[0]["described"], chain[0]["traceback"], chain[0]["place"]))
    return first


def _pack_one(error: BaseException) -> dict[str, Any]:
    try:
        text = str(error)[:MAX_TEXT]
    except Exception:  # __str__ of a user's class may raise anything
        text = ""
    kind = type(error)
    packed: dict[str, Any] = {"module": kind.__module__, "class": kind.__qualname__, "text": text}
    args = _plain(_args(error))
    if args is not None:
        packed["args"] = args
        fields = {name: value for name, value in vars(error).items() if _plain(value) is not None or value is None}
        packed["fields"] = {name: value for name, value in fields.items() if not name.startswith("__")}
    return packed


def _args(error: BaseException) -> Any:
    if isinstance(error, OSError) and error.filename is not None and len(error.args) == 2:
        return [*error.args, error.filename]  # which is not in its args
    return [arg[:MAX_TEXT] if isinstance(arg, str) else arg for arg in error.args]


def _plain(value: Any) -> Any:
    """The value if it survives a JSON round trip, otherwise None."""
    try:
        data = json.dumps(value, allow_nan=False)
        return value if len(data) <= 2 * MAX_TEXT and json.loads(data) == value else None
    except (TypeError, ValueError, RecursionError):
        return None


def _rebuild_one(packed: dict[str, Any]) -> BaseException:
    kind = _find(packed["module"], packed["class"])
    if kind is not None and "args" in packed:
        try:
            # Not its __init__, which may take other arguments and do anything.
            error = kind.__new__(kind, *packed["args"])
            if not issubclass(kind, OSError):
                error.args = tuple(packed["args"])
            vars(error).update(packed.get("fields", {}))
            if str(error) == packed["text"]:
                return error
        except Exception:  # __new__ of a user's class may raise anything
            pass
    return _named(packed["module"], packed["class"])(packed["text"])


def _find(module: str, name: str) -> type[BaseException] | None:
    """The class, if this process has loaded its module. Otherwise no code here can refer to it."""
    found: Any = sys.modules.get(module)  # also `__mp_main__`: multiprocessing calls the worker's own script so, too
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


@functools.lru_cache(maxsize=256)
def _named(module: str, name: str) -> type[RemoteError]:
    return type(name.rpartition(".")[2], (RemoteError,), {"__module__": module, "__qualname__": name})
