"""Runs the server of a data folder in the foreground, for a terminal or a supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from veredus.embedded import locks, record, settings, sockets, waiting
from veredus.embedded.folder import Folder
from veredus.embedded.launch import Launched, launch
from veredus.embedded.probe import ProbeRefused
from veredus.embedded.server import START_TIMEOUT, EmbeddedServer, hold_start_lock, look, status
from veredus.errors import EmbeddedError


class _Signals:
    """Forwards termination signals, always as SIGTERM: a second SIGINT would make the server exit without syncing."""

    def __init__(self) -> None:
        self._asked = False
        self._process: subprocess.Popen[bytes] | None = None

    def receive(self, number: int, frame: object) -> None:
        self._asked = True
        if self._process is not None:
            self._process.terminate()

    def pass_on_to(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        if self._asked:  # while the process was being made
            process.terminate()


def run_foreground(
    data: str | os.PathLike[str] | None = None, *, announce: Callable[[EmbeddedServer], None] | None = None
) -> int:
    """Run until the server ends, by SIGINT, SIGTERM, SIGHUP or `stop`; returns its exit code.

    It is shared like any other embedded server, but is not stopped when it is idle. `announce` is called once, before
    the server's first output, with the server that is about to run (its `pid` is still 0).
    """
    settings.refuse_if_forbidden()
    folder = Folder.at(data)
    folder.prepare()
    with _receiving_signals() as signals:
        with hold_start_lock(folder, START_TIMEOUT):
            running = status(folder.path)
            if running is not None:
                raise EmbeddedError(f"already running: {running.describe()}; `veredus redis stop` ends it")
            # The process that starts the server is its keeper; the last keeper may need a moment to leave.
            keeping = locks.take(folder.keeper_lock, START_TIMEOUT)
            try:
                launched = _launch(folder, announce)
            except BaseException:
                keeping.release()
                raise
        with keeping:
            signals.pass_on_to(launched.process)
            return _wait(launched)


def _launch(folder: Folder, announce: Callable[[EmbeddedServer], None] | None) -> Launched:
    binary, socket = record.choose_binary(folder), sockets.choose(folder.path)
    if announce is not None:
        announce(
            EmbeddedServer(
                url=sockets.url_of(socket),
                socket=socket,
                pid=0,
                product=binary.product,
                version=binary.version,
                data=str(folder.path),
                binary=binary.path,
            )
        )
    return launch(folder, binary, socket, output=None)


def _wait(launched: Launched) -> int:
    if not _becomes_ready(launched):
        launched.end()
        launched.gave_up()
    code = launched.process.wait()
    return code if code >= 0 else 128 - code


def _becomes_ready(launched: Launched) -> bool:
    deadline = waiting.Deadline(START_TIMEOUT)
    while launched.process.poll() is None and not deadline.passed():
        try:
            if look(launched.folder) is not None:
                return True
        except ProbeRefused:  # it is loading its data, which may take long
            deadline.extend(START_TIMEOUT)
        waiting.nap(0.05)
    return False


@contextmanager
def _receiving_signals() -> Iterator[_Signals]:
    signals = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals  # only the main thread may set handlers; elsewhere `stop` ends the server
        return
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signals.receive) for number in wanted}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
