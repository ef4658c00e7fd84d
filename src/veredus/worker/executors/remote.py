"""An exception on its way from the process of a handler to the worker: as JSON, rebuilt without running its code."""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from typing import Any

from veredus.errors import VeredusError
from veredus.model.failure import REMOTE, describe, traceback_of

MAX_TEXT = 32 * 1024
"""Characters of an error's text that travel."""
MAX_CAUSES = 8
"""Errors that an error was raised from."""
MAIN = "__mp_main__"
"""What a script that is run itself is called in the process of a handler, as Python's multiprocessing has it."""


class RemoteError(VeredusError):
    """What a handler raised in its process, where its class cannot be rebuilt here. `type(error).__name__` is the name
    of the real class."""


def pack_error(error: BaseException) -> list[dict[str, Any]]:
    """The error and what it was raised from, with its description and its traceback."""
    chain: list[dict[str, Any]] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(chain) < MAX_CAUSES:
        seen.add(id(current))
        chain.append(_pack_one(current))
        current = current.__cause__
    chain[0]["described"] = describe(error)
    chain[0]["traceback"] = traceback_of(error)
    chain[0]["pid"] = os.getpid()
    return chain


def rebuild(chain: list[dict[str, Any]]) -> BaseException:
    """The same classes where this process has them and they can be made from plain values, else RemoteError."""
    errors = [_rebuild_one(one) for one in chain]
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    first = errors[0]
    if chain[0]["traceback"]:
        first.add_note(f"In process {chain[0]['pid']}:\n{chain[0]['traceback']}")
    setattr(first, REMOTE, (chain[0]["described"], chain[0]["traceback"]))
    return first


def _pack_one(error: BaseException) -> dict[str, Any]:
    try:
        text = str(error)[:MAX_TEXT]
    except Exception:
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
        return [*error.args, error.filename]  # which the error itself keeps elsewhere
    return [arg[:MAX_TEXT] if isinstance(arg, str) else arg for arg in error.args]


def _plain(value: Any) -> Any:
    """The value if JSON gives back the same, else None."""
    try:
        data = json.dumps(value, allow_nan=False)
        return value if len(data) <= 2 * MAX_TEXT and json.loads(data) == value else None
    except (TypeError, ValueError, RecursionError):
        return None


def _rebuild_one(packed: dict[str, Any]) -> BaseException:
    kind = _find(packed["module"], packed["class"])
    if kind is not None and "args" in packed:
        try:
            # Not its __init__: that may want other arguments, and do anything.
            error = kind.__new__(kind, *packed["args"])
            if not issubclass(kind, OSError):
                error.args = tuple(packed["args"])
            vars(error).update(packed.get("fields", {}))
            if str(error) == packed["text"]:
                return error
        except Exception:
            pass  # a class of a special kind
    return _named(packed["module"], packed["class"])(packed["text"])


def _find(module: str, name: str) -> type[BaseException] | None:
    """A class that this process has loaded: who does not know the class cannot ask for it either."""
    found: Any = sys.modules.get(module)  # also `__mp_main__`: multiprocessing calls the worker's own script so, too
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


@functools.lru_cache(maxsize=256)
def _named(module: str, name: str) -> type[RemoteError]:
    return type(name.rpartition(".")[2], (RemoteError,), {"__module__": module, "__qualname__": name})
