"""Chooses a path for the server's socket that is short enough for the kernel and private to this user."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from veredus.errors import EmbeddedError

# sun_path holds 108 bytes on Linux and 104 on macOS, one of them for the final NUL; one limit for both is simpler.
LONGEST = 103


def choose(data: Path) -> str:
    """In the data folder if the path fits, else under a derived name in a runtime folder of this user."""
    inside = str(data / "server.sock")
    if _fits(inside):
        return inside
    name = hashlib.sha256(os.fsencode(data)).hexdigest()[:16] + ".sock"
    for folder in _runtime_folders():
        path = str(folder / name)
        if _fits(path) and _is_private(folder):
            return path
    raise EmbeddedError(
        f"the path {data} is too long for a unix socket in it, and no private folder with a short path was found; "
        "point VEREDUS_DATA at a shorter path"
    )


def url_of(socket: str) -> str:
    """The socket as a URL. Only characters that would end the path are escaped, so that usual paths stay readable."""
    escaped = socket.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    return f"unix://{escaped}"


def _fits(path: str) -> bool:
    return len(os.fsencode(path)) <= LONGEST


def _runtime_folders() -> Iterator[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        yield Path(runtime) / "veredus"
    for base in (tempfile.gettempdir(), "/tmp"):
        yield Path(base) / f"veredus-{os.getuid()}"


def _is_private(folder: Path) -> bool:
    # lstat, not stat: in a shared folder such as /tmp another user may have put a link under this name.
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
