"""The reference of the Python API: every public name with its signature and docstring."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
import textwrap
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import veredus

# What users import beside the package itself; those that are not installed or not there are left out.
MODULES = (
    "veredus.peer",
    "veredus.testing",
    "veredus.gateway.auth",
    "veredus.embedded",
    "veredus.contrib.fastapi",
    "veredus.contrib.django",
    "veredus.contrib.sentry",
    "veredus.telemetry",
    "veredus.dashboard",
)
_PLAIN = (Exception, BaseException, object, tuple, str, int)


def pages() -> dict[str, str]:
    parts = [
        "# API",
        "Every public name of the package. [Errors](errors.md) and [settings](config.md) have pages of their own.",
        "```python\nfrom veredus import App, Limit, SkipRetry, current\n```",
    ]
    for name in public_names():
        parts += describe(name, getattr(veredus, name), 2)
    for module in modules():
        parts += [f"## {module.__name__}", _paragraphs(inspect.getdoc(module) or "")]
        for name in exported(module):
            parts += describe(name, getattr(module, name), 3)
    return {"api.md": "\n\n".join(part for part in parts if part) + "\n"}


def public_names() -> list[str]:
    """All but the errors, which are listed elsewhere."""
    return [name for name in veredus.__all__ if not _is_error(getattr(veredus, name))]


def modules() -> list[ModuleType]:
    found = []
    for name in MODULES:
        try:
            found.append(importlib.import_module(name))
        except ImportError:
            continue
    return found


def exported(module: ModuleType) -> list[str]:
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
    return [
        name for name in names if not _is_error(getattr(module, name)) and not inspect.ismodule(getattr(module, name))
    ]


def describe(name: str, value: Any, level: int) -> list[str]:
    mark = "#" * level
    if inspect.isclass(value):
        return [f"{mark} {name}", _signature(name, value), _doc(value), *_members(name, value, level + 1)]
    if callable(value):
        return [f"{mark} {name}", _signature(name, value), _doc(value)]
    return [f"{mark} {name}", f"`{name} = {value!r}`" if isinstance(value, str | int | float) else ""]


def _members(owner: str, cls: type, level: int) -> list[str]:
    fields = _fields(cls)
    parts = [_table(fields)] if fields else []
    for name in _order(cls):
        value = inspect.getattr_static(cls, name)
        title = f"{'#' * level} {owner}.{name}"
        if isinstance(value, property):
            kind = _annotation(value.fget)
            parts += [title, f"```python\n{owner}.{name}{f': {kind}' if kind else ''}\n```", _doc(value)]
        elif isinstance(value, classmethod | staticmethod) or inspect.isfunction(value):
            parts += [title, _signature(f"{owner}.{name}", getattr(cls, name), value), _doc(getattr(cls, name))]
    return parts


def _order(cls: type) -> list[str]:
    """Public members in the order of the source, those of mix-ins after the class's own."""
    found: dict[str, None] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("veredus"):
            found.update(dict.fromkeys(name for name in vars(base) if not name.startswith("_")))
    fields = {row[0] for row in _fields(cls)}
    return [name for name in found if name not in fields]


def _fields(cls: type) -> list[tuple[str, str, str]]:
    """Name, default and meaning of the fields of dataclasses, named tuples and enums."""
    said = documented_fields(cls)
    if issubclass(cls, enum.Enum):
        return [(name, f"`{member.value!r}`", said.get(name, "")) for name, member in cls.__members__.items()]
    if dataclasses.is_dataclass(cls):
        return [
            (one.name, "" if _required(one) else f"`{_default(one)}`", said.get(one.name, ""))
            for one in dataclasses.fields(cls)
            if not one.name.startswith("_")
        ]
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        defaults = cls._field_defaults  # type: ignore[attr-defined]
        return [(name, f"`{defaults[name]!r}`" if name in defaults else "", said.get(name, "")) for name in cls._fields]
    return []


def _required(one: dataclasses.Field[Any]) -> bool:
    return one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING


def _default(one: dataclasses.Field[Any]) -> str:
    value = one.default
    if value is dataclasses.MISSING and one.default_factory is not dataclasses.MISSING:
        value = one.default_factory()
    return value.__name__ if inspect.isfunction(value) else repr(value)


@cache
def documented_fields(cls: type) -> dict[str, str]:
    """The text under each field of a class, or behind it as a comment."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    (tree,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    lines = source.splitlines()
    found = {}
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if not isinstance(target, ast.Name):
            continue
        comment = re.search(r"  # (.*)$", lines[node.end_lineno - 1]) if node.end_lineno else None
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[target.id] = " ".join(str(following.value.value).split())
        elif comment is not None:
            found[target.id] = comment[1]
    return found


def _signature(name: str, value: Any, static: Any = None) -> str:
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return f"```python\n{name}\n```"
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    text = str(signature.replace(parameters=parameters)).replace("veredus.", "")
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
    text = re.sub(r"\b(collections\.abc|typing|datetime)\.", "", text)
    text = re.sub(
        r"<factory>|<[\w.]+ object at [^>]*>|<function (\w+) at [^>]*>", lambda found: found[1] or "...", text
    )
    plain = static if static is not None else value
    awaited = "async " if inspect.iscoroutinefunction(getattr(plain, "__func__", plain)) else ""
    return f"```python\n{awaited}{_wrapped(name, text)}\n```"


def _wrapped(name: str, text: str) -> str:
    if len(name + text) <= 100:
        return name + text
    inside, _, after = text[1:].rpartition(")")
    depth, parts, current = 0, [], ""
    for char in inside:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    lines = "".join(f"    {part},\n" for part in [*parts, current.strip()])
    return f"{name}(\n{lines}){after}"


def _annotation(function: Any) -> str:
    kind = getattr(function, "__annotations__", {}).get("return", "")
    return kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))


def _doc(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    inherited = inspect.isclass(value) and any(text == (inspect.getdoc(base) or "") for base in _PLAIN)
    generated = inspect.isclass(value) and re.match(rf"{value.__name__}\(", text)
    return "" if inherited or generated else _paragraphs(text)


def _paragraphs(text: str) -> str:
    """Docstrings are prose with code in back-quotes; what is indented stays as it is."""
    return "\n".join(line if line.startswith("    ") else line.replace("<", "&lt;") for line in text.splitlines())


def _table(rows: list[tuple[str, str, str]]) -> str:
    body = "\n".join(
        f"| `{name}` | {default.replace('|', chr(92) + '|')} | {_cell(text)} |" for name, default, text in rows
    )
    return f"| field | default or value | meaning |\n|---|---|---|\n{body}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def source_of(module: ModuleType) -> str:
    return Path(inspect.getfile(module)).read_text(encoding="utf-8")
