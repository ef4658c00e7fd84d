"""The environment's settings for the embedded server: whether it is allowed, where its data is, how long it lingers."""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
from pathlib import Path

from veredus.errors import ConfigError, EmbeddedError

DEFAULT_LINGER = 300.0
PROJECT_MARKS = ("pyproject.toml", ".git")
_YES = {"", "1", "true", "yes", "on"}
_NO = {"0", "false", "no", "off"}


def refuse_if_forbidden() -> None:
    """Raise unless an embedded server may run here."""
    if sys.platform == "win32":
        raise EmbeddedError("there is no embedded server for Windows; set VEREDUS_REDIS_URL to a Redis server")
    value = os.environ.get("VEREDUS_EMBEDDED", "")
    if value.strip().lower() in _NO:
        raise EmbeddedError(
            f"no Redis URL is set and VEREDUS_EMBEDDED={value} forbids the embedded server; "
            "set VEREDUS_REDIS_URL (for example redis://localhost:6379/0)"
        )
    if value.strip().lower() not in _YES:
        raise ConfigError("VEREDUS_EMBEDDED", value, "1, true, yes, on, 0, false, no or off", known=_YES | _NO)


def linger_seconds(given: float | None) -> float:
    """How long the server stays after its last client has left: the given value, else the environment's, else 300."""
    field, value = "linger", given
    if given is None:
        field, text = "VEREDUS_EMBEDDED_LINGER", os.environ.get("VEREDUS_EMBEDDED_LINGER", "").strip()
        try:
            value = float(text) if text else DEFAULT_LINGER
        except ValueError as exc:
            raise ConfigError(field, text, "seconds greater than 0, or inf") from exc
    assert value is not None
    if math.isnan(value) or value <= 0:
        raise ConfigError(field, value, "seconds greater than 0, or inf")
    return float(value)


def data_path(given: str | os.PathLike[str] | None) -> Path:
    """The data folder as a canonical path, so that two spellings of it share one server."""
    chosen = os.fspath(given) if given is not None else os.environ.get("VEREDUS_DATA", "").strip()
    try:
        path = Path(chosen).expanduser() if chosen else _default_data_path()
    except RuntimeError as exc:
        raise EmbeddedError("this user has no home folder; set VEREDUS_DATA to a folder for the data") from exc
    return path.resolve()


def project_path() -> Path | None:
    """The project that the current folder belongs to: the nearest folder with a pyproject.toml or .git."""
    try:
        here = Path.cwd()
    except OSError:  # the folder is gone
        return None
    for folder in (here, *here.parents):
        if any((folder / mark).exists() for mark in PROJECT_MARKS):
            return folder
    return None


def short(path: str | os.PathLike[str]) -> str:
    """A path for people: with ~ for the home folder."""
    text, home = os.fspath(path), os.path.expanduser("~")
    return "~" + text[len(home) :] if text.startswith(home + os.sep) else text


def _default_data_path() -> Path:
    """Each project has a server of its own, so that two projects do not take each other's tasks."""
    shared, project = _shared_data_path(), project_path()
    if project is None:
        return shared
    digest = hashlib.sha256(os.fsencode(project)).hexdigest()[:8]
    return shared / "projects" / f"{re.sub('[^A-Za-z0-9_.-]', '_', project.name)[:24]}-{digest}"


def _shared_data_path() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "veredus"
    base = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification requires programs to ignore a relative path.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "veredus"
