"""Guard: a process between a worker and a handler's process that leaves no process of the handler behind.

When the worker dies (even by SIGKILL) or ends the handler, or the handler's process dies, the guard kills the handler's
process and all its descendants. Then it exits as the handler's process did, with the same code or signal. Only a real
daemon (forked twice, in its own session) survives.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from veredus.process.die_with_parent import adopt_orphans, end_with_parent


def guard(parent: int, connection: socket.socket) -> None:
    """Return in a child; this process becomes its guard and never returns. Call it before starting any thread."""
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    caught = (signal.SIGTERM, signal.SIGCHLD)
    signal.pthread_sigmask(signal.SIG_BLOCK, caught)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the worker decides what it means
    adopt_orphans()
    own = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(woken)
        os.close(wakes)
        end_with_parent(own, signal.SIGKILL)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, caught)
        return
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    for number in caught:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, caught)
    end_with_parent(parent, signal.SIGTERM)
    _end_like(_watch(pid, woken, connection))


def _watch(pid: int, woken: int, connection: socket.socket) -> int:
    """Wait until the handler is to end; returns the wait status of its process."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(connection, select.POLLHUP)  # the worker has closed its end, or is gone
    while True:
        events = dict(poll.poll())
        numbers = os.read(woken, 4096) if woken in events else b""
        status = _reap(pid)
        if status is None and signal.SIGTERM not in numbers and connection.fileno() not in events:
            continue
        killed = kill_all(pid)
        if status is None:
            status = os.waitpid(pid, 0)[1]
        _wait_for(killed)
        return status


def _reap(handler: int) -> int | None:
    """Reap all ended children, including orphans; returns the status of the handler's process if it has ended."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == handler:
                found = ended[1]
    return found


def kill_all(handler: int) -> list[int]:
    """Kill the handler's process and its descendants; returns those that it could kill, parents first. All are stopped
    first, so that they start no others."""
    _signal_group(handler, signal.SIGSTOP)
    stopped: dict[int, None] = {}
    while new := [pid for pid in _started_by(handler) if pid not in stopped]:
        _signal(new, signal.SIGSTOP)
        stopped |= dict.fromkeys(new)
    _signal_group(handler, signal.SIGKILL)
    return _signal(stopped, signal.SIGKILL)


def _wait_for(killed: Iterable[int]) -> None:
    """Wait until they have ended. Orphans are children of this process."""
    for pid in killed:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _started_by(handler: int) -> list[int]:
    """The descendants, parents first, read from /proc. Without /proc, only the handler's group can be killed.

    Orphans are children of this process. They count if they are in the handler's session or lead their own session; a
    daemon does not lead its session.
    """
    children: dict[int, list[int]] = {}
    sessions: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            _, parent, _, session = entry.read_bytes().rpartition(b") ")[2].split()[:4]
            pid = int(entry.parent.name)
            children.setdefault(int(parent), []).append(pid)
            sessions[pid] = int(session)
    found = [pid for pid in children.get(os.getpid(), ()) if sessions[pid] in (handler, pid)]
    for one in found:  # grows during the loop
        found += children.pop(one, [])
    return list(dict.fromkeys(found))


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _signal(pids: Iterable[int], number: signal.Signals) -> list[int]:
    """Send a signal; returns the processes that received it."""
    reached = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            reached.append(pid)
    return reached


def _end_like(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core dump of a crash is enough
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)
