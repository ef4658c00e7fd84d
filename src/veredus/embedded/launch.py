"""Starts the server process on a data folder, with Veredus's settings and with the lock that shows that it is alive."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, replace

from veredus.embedded import locks, record
from veredus.embedded.binary import Binary
from veredus.embedded.folder import Folder
from veredus.embedded.record import DataRecord


@dataclass(frozen=True, slots=True)
class Launched:
    """A server process that is our child, and the folder's record from before it."""

    folder: Folder
    process: subprocess.Popen[bytes]
    record: DataRecord
    previous: DataRecord | None

    def end(self, timeout: float = 10.0) -> int:
        """End it without its socket, by force if necessary; returns its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def gave_up(self) -> None:
        """It never answered, so it wrote nothing: the data still belongs to the previous server."""
        if self.previous is not None and self.folder.path.exists():
            record.write(self.folder, self.previous)


def launch(folder: Folder, binary: Binary, socket: str, output: int | None) -> Launched:
    """Start the program; raises `locks.Busy` if a server is running on the folder."""
    lock = locks.take(folder.server_lock, timeout=1.0)
    try:
        previous = record.read(folder)
        # Recorded before it can write anything, so that a crash in between never leaves data of an unknown server.
        now = DataRecord(product=binary.product, version=binary.version, binary=binary.path, socket=socket, pid=0)
        record.write(folder, now)
        process = subprocess.Popen(
            _command(folder, binary, socket),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            cwd=folder.path,
            env=environment(),
            umask=0o077,
            # The lock belongs to the process: it is held exactly as long as the process lives, whatever happens to us.
            pass_fds=[lock.descriptor],
            # A second interrupt makes the server exit without syncing, so Ctrl-C must not reach it directly.
            start_new_session=True,
        )
        now = replace(now, pid=process.pid)
        record.write(folder, now)
        return Launched(folder, process, now, previous)
    finally:
        lock.leave_to_child()


def environment() -> dict[str, str]:
    """The wheel's server uses the C library's allocator, which caches only 7 freed pieces of each size. A script
    that moves a batch of tasks frees and takes hundreds. With a million tasks pending, each further piece costs a
    walk through cold memory (a tenth of the drain rate)."""
    given = os.environ.get("GLIBC_TUNABLES", "")
    wanted = [] if "tcache_count" in given else ["glibc.malloc.tcache_count=127"]
    return {**os.environ, "GLIBC_TUNABLES": ":".join([*filter(None, [given]), *wanted])}


def _command(folder: Folder, binary: Binary, socket: str) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": socket,
        "unixsocketperm": "600",
        "dir": str(folder.path),
        "appendonly": "yes",
        "appendfsync": "everysec",
        # The append-only file has everything; a snapshot would only take time.
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "protected-mode": "yes",
    }
    return [binary.path, *(word for name, value in options.items() for word in (f"--{name}", value))]
