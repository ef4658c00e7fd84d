"""The reference of settings: fields of the frozen dataclasses, their defaults, flags and variables; the environment."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tools.docs.api_pages import documented_fields
from tools.docs.command_pages import commands
from veredus.app import App

ROOT = Path(__file__).parents[2]

# title, module, class, the command whose options have the same names, what it is for
CLASSES = (
    ("Worker", "veredus.worker.config", "WorkerConfig", "worker", "`app.worker(...)` and `veredus worker`."),
    (
        "Gateway",
        "veredus.gateway.config",
        "GatewayConfig",
        "gateway serve",
        "`app.gateway(...)` and `veredus gateway`.",
    ),
    ("Dashboard", "veredus.dashboard.config", "DashboardConfig", "dash", "The dashboard and `veredus dash`."),
    ("Peer", "veredus.peer.config", "PeerConfig", "", "`veredus.peer.connect(...)`."),
    (
        "Link",
        "veredus.link.config",
        "LinkConfig",
        "",
        "One connection's link; the gateway makes it from its own settings.",
    ),
    (
        "Options of a task",
        "veredus.model.options",
        "Options",
        "",
        "`@app.task(...)`, `task.using(...)`; see [options](../options.md).",
    ),
    (
        "Limit",
        "veredus.model.limits",
        "Limit",
        "",
        "`@app.task(limit=...)`, `app.limit(...)`; see [limits](../order-and-limits.md).",
    ),
)

# Variables that no command declares, because the code reads them wherever it runs.
READ_ANYWHERE = {
    "REDIS_URL": "where Redis is, if VEREDUS_REDIS_URL does not say",
    "VEREDUS_APP": "an app, as module:app, whose server and `redact` commands use",
    "VEREDUS_REDIS_URL": "where Redis is; without it and REDIS_URL, the embedded server",
    "VEREDUS_KEY_PREFIX": "what all keys begin with instead of `asynq`; every process of a system must have the same",
    "VEREDUS_ARCHIVE_SIZE": "how many archived tasks a queue keeps, like `App(archive_size=...)`",
    "VEREDUS_ARCHIVE_DAYS": "for how many days, like `App(archive_days=...)`",
    "VEREDUS_EMBEDDED": "0 forbids the embedded server",
    "VEREDUS_EMBEDDED_SERVER": "the program to start as embedded server, instead of the one found",
    "VEREDUS_EMBEDDED_LINGER": "seconds that the embedded server stays after its last client has left",
    "VEREDUS_DATA": "the folder of the embedded server's data",
}
_NOT_FOR_USERS = {"VEREDUS_COMPLETE", "VEREDUS_DEMO_JOURNAL"}


def pages() -> dict[str, str]:
    parts = [
        "# Settings",
        "What can be set, where, and what it is without you. A wrong value raises `ConfigError` with the field, the"
        " value and what is allowed.",
        "## App",
        "`App(url=None, *, ...)`. Durations in seconds.",
        _rows([(name, default, "", "", "") for name, default in app_settings()]),
    ]
    for title, module, name, command, text in CLASSES:
        cls = _load(module, name)
        if cls is not None:
            parts += [f"## {title}", f"{text} {inspect.getdoc(cls) or ''}".strip(), _rows(list(_fields(cls, command)))]
    rows = "\n".join(f"| `{name}` | {text} |" for name, text in sorted(variables().items()))
    parts += ["## Environment", f"| variable | meaning |\n|---|---|\n{rows}"]
    return {"config.md": "\n\n".join(parts) + "\n"}


def app_settings() -> list[tuple[str, str]]:
    return [
        (one.name, repr(one.default))
        for one in inspect.signature(App).parameters.values()
        if one.kind is inspect.Parameter.KEYWORD_ONLY or one.name == "url"
    ]


def variables() -> dict[str, str]:
    """Every variable of the environment that a user can set."""
    found = dict(READ_ANYWHERE)
    for path, command, context in commands():
        for option in command.params:
            if isinstance(option, click.Option):
                for name in _variables_of(option, context):
                    found.setdefault(name, f"`{' '.join(path)} {option.opts[-1]}`: {option.help or ''}")
    return found


def read_by_source() -> set[str]:
    """Every such name in the source, for the test that none is forgotten here."""
    found: set[str] = set()
    for path in (ROOT / "src/veredus").rglob("*.py"):
        found |= set(re.findall(r'(?<=")VEREDUS_[A-Z_]+[A-Z](?=")', path.read_text(encoding="utf-8")))
    return found - _NOT_FOR_USERS


def _variables_of(option: click.Option, context: click.Context) -> list[str]:
    if option.envvar:
        return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar)
    if context.auto_envvar_prefix and option.name and option.name not in ("log_level", "log_format", "help"):
        return [f"{context.command.context_settings.get('auto_envvar_prefix', 'VEREDUS')}_{option.name.upper()}"]
    return []


def _fields(cls: Any, command: str) -> Iterator[tuple[str, str, str, str, str]]:
    options = _options(command)
    said = documented_fields(cls)
    for one in dataclasses.fields(cls):
        if one.name.startswith("_"):
            continue
        flag, variable = options.get(one.name, ("", ""))
        text = said.get(one.name, "") or str(one.metadata.get("help", ""))
        yield one.name, _default(one), flag, variable, text


def _options(path: str) -> dict[str, tuple[str, str]]:
    for names, command, context in commands():
        if " ".join(names[1:]) == path:
            return {
                option.name: (option.opts[-1], next(iter(_variables_of(option, context)), ""))
                for option in command.params
                if isinstance(option, click.Option) and option.name
            }
    return {}


def _default(one: dataclasses.Field[Any]) -> str:
    if one.default is not dataclasses.MISSING:
        value: Any = one.default
    elif one.default_factory is not dataclasses.MISSING:
        value = one.default_factory()
    else:
        return "required"
    return value.__name__ if inspect.isfunction(value) else repr(value)


def _load(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        return None


def _rows(rows: list[tuple[str, str, str, str, str]]) -> str:
    with_flags = any(flag or variable for _, _, flag, variable, _ in rows)
    with_text = any(text for *_, text in rows)
    head = ["field", "default", *(["flag", "variable"] if with_flags else []), *(["meaning"] if with_text else [])]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, default, flag, variable, text in rows:
        cells = [f"`{name}`", f"`{default}`".replace("|", "\\|")]
        if with_flags:
            cells += [f"`{flag}`" if flag else "", f"`{variable}`" if variable else ""]
        if with_text:
            cells.append(text.replace("|", "\\|").replace("<", "&lt;"))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
