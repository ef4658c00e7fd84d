"""Key names inside scripts: `keys.lane(order_key)` in Lua is `wire.keys.lane` in Python.

A script never spells a key. The loader replaces each call of a key function by the concatenation that the Python
function performs, so a script pays nothing for the name. In Lua the first argument differs, because a script has
the beginning of the key already:

- `keys.f(queue, ...)` becomes `keys.f(...)`; the script's argument `queue_prefix` stands for the queue.
- `session_keys.f(tag, ...)` takes the partition's prefix: `session_keys.expiries(partition)`.
- `session_keys.f(user, ...)` takes the partition's prefix and the user: `session_keys.mailbox(partition, user)`.
- `session_keys.f(sid, ...)` takes the session's prefix: `session_keys.meta(session.base)`.
- `target_keys.f(...)` is the key of a second queue: the argument `target_prefix` stands for it.
- Other functions take the same arguments, and constants are quoted: `session_keys.hints(node)`, `keys.QUEUES`.

Likewise `field.TOP` is the name of a field of a session, from `wire/session_fields.py`.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

from veredus.wire import keys, session_fields, session_keys

_MODULES: dict[str, Any] = {"keys": keys, "target_keys": keys, "session_keys": session_keys, "field": session_fields}
_USE = re.compile(r"(?<![\w.])(session_keys|target_keys|keys|field)\.(\w+)")
_PLAIN = re.compile(r"[\w.]+(\[[\w.]+\])?")
_SID = "p000-sid"
_PARTITION = re.compile(r"\{p[0-9a-f]{3}\}:")


def expand(source: str, *, has_task_prefix: bool) -> str:
    """Lua text with every key function replaced. With `has_task_prefix`, the script has a local for the prefix of its
    tasks' keys: most scripts make many such keys."""
    pieces, at = [], 0
    while use := _USE.search(source, at):
        pieces.append(source[at : use.start()])
        module, name = use[1], use[2]
        if name.isupper():
            pieces.append(_quoted(getattr(_MODULES[module], name)))
            at = use.end()
            continue
        given, at = _arguments(source, use.end(), use[0])
        given = [expand(argument, has_task_prefix=has_task_prefix) for argument in given]
        parts = template(module, name)
        wanted = sum(isinstance(part, int) for part in parts)
        if len(given) != wanted:
            raise AssertionError(f"{use[0]} takes {wanted} arguments in Lua, the script passes {len(given)}")
        if has_task_prefix and (module, name) == ("keys", "task"):
            parts = ("task_prefix", *parts[2:])
        pieces.append(f"({' .. '.join(_operand(part, given) for part in parts)})")
    return "".join([*pieces, source[at:]])


@cache
def template(module: str, name: str) -> tuple[str | int, ...]:
    """What a key is made of: Lua text, or the position of an argument."""
    make = getattr(_MODULES[module], name, None)
    if not inspect.isfunction(make):
        raise AssertionError(f"wire/{module}.py has no function {name}")
    parameters = list(inspect.signature(make).parameters)
    first = parameters[0]
    marks = {parameter: chr(0xE000 + position) for position, parameter in enumerate(parameters)}
    if name == "session_prefix":
        return (0, "'s:'", 1, "':'")
    if module == "session_keys" and first in ("tag", "sid") and name != "prefix":
        marks[first] = {"tag": "p000", "sid": _SID}[first]
    made = make(**marks)
    head: tuple[str | int, ...] = ()
    if module in ("keys", "target_keys") and first == "queue":
        made = made.removeprefix(keys.queue_prefix(marks.pop("queue")))
        head = ("queue_prefix" if module == "keys" else "target_prefix",)
    elif module == "session_keys" and first in ("tag", "sid", "user") and name != "prefix":
        beginning = session_keys.session_prefix(_SID) if first == "sid" else session_keys.prefix("p000")
        made = _PARTITION.sub("{p000}:", made).removeprefix(beginning)
        head = (0,)
        if first != "user":
            del marks[first]
    arguments = {
        mark: position + len([part for part in head if part == 0]) for position, mark in enumerate(marks.values())
    }
    texts = [piece for piece in re.split("([\ue000-\uf8ff])", made) if piece]
    return (*head, *[arguments[piece] if piece in arguments else _quoted(piece) for piece in texts])


def _operand(part: str | int, given: list[str]) -> str:
    if isinstance(part, str):
        return part
    argument = given[part]
    return argument if _PLAIN.fullmatch(argument) else f"({argument})"


def _arguments(source: str, at: int, use: str) -> tuple[list[str], int]:
    """The arguments of a call whose opening bracket is here, and where the call ends."""
    if source[at : at + 1] != "(":
        raise AssertionError(f"{use} is a function: call it")
    depth, start, found = 1, at + 1, []
    for end in range(start, len(source)):
        char = source[end]
        depth += (char in "([{") - (char in ")]}")
        if (char == "," and depth == 1) or depth == 0:
            found.append(source[start:end].strip())
            start = end + 1
        if depth == 0:
            return [argument for argument in found if argument], end + 1
    raise AssertionError(f"{use} has no closing bracket")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
