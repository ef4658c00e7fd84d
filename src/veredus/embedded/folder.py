"""The data folder: its files, its permissions, and when its server was last requested."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from veredus.embedded import settings
from veredus.errors import EmbeddedError

LOG_LIMIT = 1_000_000
# What a server leaves in its folder: since Redis 7 (and in Valkey) a directory of files, before that single files.
DATA_FILES = ("appendonlydir", "appendonly.aof", "dump.rdb")


@dataclass(frozen=True, slots=True)
class Folder:
    """Names of the files in one data folder. Three locks say who is alive, since the kernel keeps them honest:

    start.lock    held while the server is started or stopped: by one process at a time
    server.lock   held by the server process itself, which inherits it: held means that a server lives on these files
    keeper.lock   held by the keeper, or by the command that runs the server in the foreground
    """

    path: Path

    @classmethod
    def at(cls, data: str | os.PathLike[str] | None) -> Folder:
        """The given folder, else the one from the environment and the platform. Creates nothing."""
        return cls(settings.data_path(data))

    @property
    def start_lock(self) -> Path:
        """Held while a process starts or stops the server."""
        return self.path / "start.lock"

    @property
    def server_lock(self) -> Path:
        """Held by the server process itself."""
        return self.path / "server.lock"

    @property
    def keeper_lock(self) -> Path:
        """Held by the keeper or the foreground process."""
        return self.path / "keeper.lock"

    @property
    def record(self) -> Path:
        """Which server wrote this data, and where its socket is."""
        return self.path / "server.json"

    @property
    def server_log(self) -> Path:
        """The server's log."""
        return self.path / "server.log"

    @property
    def keeper_log(self) -> Path:
        """The keeper's log."""
        return self.path / "keeper.log"

    def prepare(self) -> None:
        """Create the folder, or check that only this user can access it."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.path.stat()
        except OSError as exc:
            raise EmbeddedError(f"cannot use {self.path} for the data of the embedded server: {exc}") from exc
        if status.st_uid != os.getuid():
            raise EmbeddedError(f"{self.path} belongs to another user; point VEREDUS_DATA at a folder of your own")
        if not stat.S_IMODE(status.st_mode) & 0o077:
            return
        if self.record.exists() or not any(self.path.iterdir()):
            self.path.chmod(0o700)
        elif stat.S_IMODE(status.st_mode) & 0o022:
            # Another user's folder, with other files in it: do not change it, and do not use it.
            raise EmbeddedError(
                f"others may write into {self.path}; chmod 700 it, or point VEREDUS_DATA at another folder"
            )

    def has_data(self) -> bool:
        """Whether a server has written data here."""
        return any((self.path / name).exists() for name in DATA_FILES)

    def note_use(self, linger: float) -> None:
        """Tell the keeper that a client is about to connect, and how long the server should linger from now on."""
        write_whole(self.path / "last-use", repr(linger))

    def last_use(self) -> tuple[int, float]:
        """A stamp that differs after every use, and the lingering time that the last user requested."""
        path = self.path / "last-use"
        try:
            return path.stat().st_mtime_ns, float(path.read_text())
        except (OSError, ValueError):
            return 0, settings.DEFAULT_LINGER

    def open_log(self, path: Path) -> int:
        """A descriptor that appends to a log of this folder. A log that has grown large is moved aside first."""
        try:
            if path.stat().st_size > LOG_LIMIT:
                path.replace(path.with_suffix(".log.old"))
        except FileNotFoundError:
            pass
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def log_tail(self, path: Path, lines: int = 8) -> str:
        """The last lines of a log, for an error message."""
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 8192))
                text = file.read().decode(errors="replace").strip()
        except OSError:
            text = ""
        shown = "\n".join(f"  {line}" for line in text.splitlines()[-lines:])
        return f"{path}:\n{shown}" if shown else f"{path} is empty"


def write_whole(path: Path, text: str) -> None:
    """Replace a small file so that a reader sees either the old or the new text, even after a crash."""
    # One name is enough: only holders of the start lock or of the server lock write, each their own file.
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
