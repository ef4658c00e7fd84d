"""The reference of Redis keys and channels, from `wire/keys.py` and `wire/session_keys.py`."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from veredus.wire import keys, session_keys

_SAMPLES = {
    "queue": "q",
    "task_id": "<id>",
    "day": "2026-11-16",
    "epoch_day": 20773,
    "epoch_hour": 498552,
    "task_type": "<type>",
    "payload": b"",
    "name": "<group>",
    "set_id": "<set>",
    "worker_id": "<worker>",
    "connection": 1,
    "producer": "<producer>",
    "slot": 0,
    "order_key": "<key>",
    "scope": "<scope>",
    "entry_id": "<entry>",
    "listener": "<listener>",
    "host": "<host>",
    "pid": 1,
    "server_id": "<id>",
    "scheduler_id": "<id>",
    "tag": "p0a3",
    "sid": "p0a3-<random>",
    "user": "ada",
    "node": "<node>",
    "rid": 7,
    "key": "<dedupe key>",
    "mark": "<run mark>",
    "chunk": 0,
}
_NO_KEYS = {
    "checked_prefix", "absent", "tag", "user_tag", "new_sid", "sid_tag", "is_sid", "check_name",
    "sharded_hints", "split", "types_beside", "container",
}  # fmt: skip


class Key(NamedTuple):
    name: str
    sample: str
    text: str


def pages() -> dict[str, str]:
    parts = [
        "# Keys and channels",
        "Everything that Veredus writes, as the functions in `wire/keys.py` and `wire/session_keys.py` name it. What"
        " stands between braces decides on which node of a cluster a key lives. `VEREDUS_KEY_PREFIX` replaces `asynq`."
        " Keys that Asynq has too are byte for byte the same; those of Veredus alone are listed in"
        " [Where Veredus differs](../asynq-differences.md).",
        "## Queues",
        _table(listed(keys)),
        "## Gateway",
        _table(listed(session_keys)),
    ]
    return {"keys.md": "\n\n".join(parts) + "\n"}


@cache
def listed(module: ModuleType) -> tuple[Key, ...]:
    tree = ast.parse(Path(inspect.getfile(module)).read_text(encoding="utf-8"))
    found = []
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in _NO_KEYS:
            arguments = [_SAMPLES[one.arg] for one in node.args.args]
            sample = getattr(module, node.name)(*arguments)
            found.append(Key(node.name, sample, ast.get_docstring(node) or ""))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            value = getattr(module, name)
            text = str(ast.literal_eval(following.value)) if isinstance(following, ast.Expr) else ""
            if name.isupper() and isinstance(value, str) and ":" in value and text:
                found.append(Key(name, value, text))
    return tuple(found)


def meaning(name: str) -> str:
    """What is known of a key by the name that a script's header gives it; empty if nothing is."""
    for key in (*listed(keys), *listed(session_keys)):
        if key.name.lower() == name.lower():
            return f"`{_cell(key.sample)}`: {_cell(key.text)}"
    return ""


def _table(found: tuple[Key, ...]) -> str:
    rows = "\n".join(f"| `{_cell(key.sample)}` | {_cell(key.text)} |" for key in found)
    return f"| key | what it is |\n|---|---|\n{rows}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
