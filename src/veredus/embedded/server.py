"""Starts, shares and stops the server of a data folder, from any process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import veredus
from veredus.embedded import locks, record, settings, sockets, waiting
from veredus.embedded.binary import Binary
from veredus.embedded.folder import Folder
from veredus.embedded.probe import Probe, ProbeRefused
from veredus.errors import EmbeddedError

START_TIMEOUT = 30.0
# Loading a large append-only file may take minutes; wait as long as the server says that it is loading.
LOADING_TIMEOUT = 600.0


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A running embedded server."""

    url: str
    socket: str
    pid: int
    product: str
    version: str
    data: str
    binary: str

    def describe(self) -> str:
        """One line for logs."""
        return f"embedded {self.product} {self.version} in {settings.short(self.data)} (pid {self.pid})"


def ensure(data: str | os.PathLike[str] | None = None, *, linger: float | None = None) -> EmbeddedServer:
    """The server of this data folder: the running one, else a new one. Blocks until it answers.

    Connect within `linger` seconds: the server is stopped that long after the last client has left (and after the last
    call of `ensure`). The latest caller's value applies. Call it again whenever the connection is refused.
    """
    settings.refuse_if_forbidden()
    seconds = settings.linger_seconds(linger)
    folder = Folder.at(data)
    folder.prepare()
    with hold_start_lock(folder, LOADING_TIMEOUT):
        folder.note_use(seconds)
        return _bring_up(folder)


def status(data: str | os.PathLike[str] | None = None) -> EmbeddedServer | None:
    """The server that is running on this data folder, or None. Never starts one, and never connects: this does not
    count as use."""
    folder = Folder.at(data)
    return _recorded(folder) if _is_alive(folder) else None


def stop(data: str | os.PathLike[str] | None = None, timeout: float = 10.0) -> bool:
    """Shut the server down, with all data on disk. Returns False if none was running."""
    folder = Folder.at(data)
    if not _is_alive(folder):
        return False
    with hold_start_lock(folder, timeout):
        known = record.read(folder)
        if known is None or not _is_alive(folder):
            return False
        try:
            with Probe(known.socket, timeout) as probe:
                probe.shut_down()
        except (FileNotFoundError, ConnectionError):
            pass  # it no longer listens: a shutdown that was requested earlier is in progress
        except (OSError, ProbeRefused) as exc:
            raise EmbeddedError(f"the server (pid {known.pid}) of {folder.path} did not shut down: {exc}") from exc
        if not waiting.until(lambda: not _is_alive(folder), timeout):
            raise EmbeddedError(f"the server (pid {known.pid}) of {folder.path} still runs after {timeout:g} s")
        waiting.until(lambda: not locks.is_held(folder.keeper_lock), timeout)
    return True


def look(folder: Folder) -> EmbeddedServer | None:
    """The server if it answers and has loaded its data, else None; raises `Refused` while it is loading."""
    known = record.read(folder)
    if known is None:
        return None
    try:
        with Probe(known.socket) as probe:
            probe.ask("PING")
    except ProbeRefused as exc:
        if str(exc).startswith("LOADING"):
            raise
    except OSError:
        return None
    # Read after the reply: a server writes its record before it can answer, so this is its record.
    return _recorded(folder)


def _bring_up(folder: Folder) -> EmbeddedServer:
    """Adopt or start the server, once each, and wait; the caller holds the start lock."""
    deadline, latest = waiting.Deadline(START_TIMEOUT), waiting.Deadline(LOADING_TIMEOUT)
    adopted = started = False
    while not (deadline.passed() or latest.passed()):
        if locks.is_held(folder.keeper_lock):
            try:
                server = look(folder) if _is_alive(folder) else None
            except ProbeRefused:
                deadline.extend(START_TIMEOUT)
                server = None
            if server is not None:
                return server
            waiting.nap()
        elif started or (adopted and _is_alive(folder)):
            break
        elif _is_alive(folder):
            # Its keeper was killed: a new keeper adopts the live server.
            _spawn_keeper(folder, None)
            adopted = True
        else:
            _spawn_keeper(folder, record.choose_binary(folder))
            started = True
    raise _no_answer(folder, deadline.passed() or latest.passed())


def _spawn_keeper(folder: Folder, binary: Binary | None) -> None:
    if not sys.executable:
        raise EmbeddedError("this program does not know its Python interpreter; run `veredus redis` beside it")
    root = str(Path(veredus.__file__).parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH", "")])]
    what = [binary.path, binary.product, binary.version] if binary else []
    log = folder.open_log(folder.keeper_log)
    try:
        subprocess.run(
            # -P: the data folder is its working directory, and must not become a place to import from.
            [sys.executable, "-P", "-m", "veredus.embedded.keeper", str(folder.path), *what],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder.path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
            timeout=START_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise EmbeddedError(f"the keeper of the embedded server cannot be started: {exc}") from exc
    finally:
        os.close(log)


def _no_answer(folder: Folder, timed_out: bool) -> EmbeddedError:
    if _is_alive(folder):
        known = record.read(folder)
        pid = known.pid if known else 0
        text = f"the server (pid {pid}) of {folder.path} does not answer; end it with kill {pid} and try again"
    elif timed_out:
        text = f"the embedded server of {folder.path} did not start within {START_TIMEOUT:g} s"
    else:
        text = f"the embedded server of {folder.path} did not start"
    return EmbeddedError(f"{text}\n{folder.log_tail(folder.server_log)}\n{folder.log_tail(folder.keeper_log)}")


def hold_start_lock(folder: Folder, timeout: float) -> locks.Lock:
    """Everything that starts or stops the server of a folder runs inside this lock, one at a time."""
    try:
        return locks.take(folder.start_lock, timeout)
    except locks.Busy as exc:
        raise EmbeddedError(
            f"another process has been starting or stopping the server of {folder.path} for {timeout:g} s"
        ) from exc
    except OSError as exc:
        raise EmbeddedError(f"cannot use {folder.path}: {exc}") from exc


def _is_alive(folder: Folder) -> bool:
    try:
        return locks.is_held(folder.server_lock)
    except OSError as exc:
        raise EmbeddedError(f"cannot use {folder.path}: {exc}") from exc


def _recorded(folder: Folder) -> EmbeddedServer | None:
    """The server in the record, which is the live one if there is one; None while it is being started."""
    known = record.read(folder)
    if known is None or not known.pid:
        return None
    return EmbeddedServer(
        url=sockets.url_of(known.socket),
        socket=known.socket,
        pid=known.pid,
        product=known.product,
        version=known.version,
        data=str(folder.path),
        binary=known.binary,
    )
