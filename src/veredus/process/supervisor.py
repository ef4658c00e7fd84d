"""Supervisor: forks child processes, replaces those that die, and forwards a stop to all of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from veredus.errors import ConfigError, StoreError
from veredus.process.die_with_parent import end_with_parent
from veredus.process.signals import SIGNALS, StopSignals, begin_as_child, stop_signals

logger = logging.getLogger("veredus.supervisor")

_Handlers = dict[signal.Signals, Callable[[], None]]

SAME_REQUEST = 0.5
"""Seconds within which a second signal counts as the same stop request, not as a request to abort."""
KILL_AFTER = 10.0
"""Seconds beyond the shutdown timeout before a process is killed."""
EXIT_CONFIG = 2
EXIT_NO_REDIS = 3


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


@dataclass(slots=True)
class SupervisedProcess:
    """A child of the supervisor."""

    index: int
    """Its number among the children, from 0. A replacement has the same."""
    name: str
    pid: int = 0
    started_at: float = 0.0
    failures: int = 0
    """How often in a row it and its predecessors died right after their start."""
    is_replaced: bool = False
    """Whether its replacement has been started."""


class Supervisor:
    """The base of the worker's and the gateway's supervisor. `live` runs in the child; `ended` reacts to its exit."""

    kind = "worker"
    passes_on: tuple[signal.Signals, ...] = ()
    """Signals to forward to the children, besides stop signals."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._children: dict[int, SupervisedProcess] = {}
        self._stopping = False
        self._due: list[tuple[float, SupervisedProcess]] = []
        """Replacements for dead children, and when to start them, on the monotonic clock."""

    def live(self, child: SupervisedProcess) -> int:
        """Run in the child; returns its exit code."""
        raise NotImplementedError

    def ended(self, child: SupervisedProcess, code: int) -> int:
        """React to the exit of a child, for example by `replace`. Returns its part of the supervisor's exit code."""
        raise NotImplementedError

    def patience(self) -> float:
        """Seconds before a child that does not stop is killed."""
        raise NotImplementedError

    def check_first(self, signals: StopSignals) -> None:
        """Called before the first child is started. Sets `_stopping` if a stop is requested during the call."""

    def run(self) -> int:
        with stop_signals() as signals:
            self.check_first(signals)
            handlers: _Handlers = {signal.SIGALRM: self._kill_the_rest}
            for number in self.passes_on:
                handlers[number] = functools.partial(self._send, number)
            with _woken_by_signals(handlers) as woken:
                signals.notify(self.stop)
                logger.info("supervisor %d starts %d %s processes", os.getpid(), self._size, self.kind)
                for index in range(self._size):
                    if not self._stopping:
                        self._spawn(SupervisedProcess(index, str(uuid.uuid4())))
                return self._wait(woken)

    def _wait(self, woken: int) -> int:
        """Wait until no child is left; returns the exit code."""
        exit_code = 0
        while self._children or (self._due and not self._stopping):
            pid, status = os.waitpid(-1, os.WNOHANG) if self._children else (0, 0)
            child = self._children.pop(pid, None)
            if child is not None:
                exit_code = max(exit_code, self.ended(child, os.waitstatus_to_exitcode(status)))
            elif not pid:
                self._replace()
                self._sleep(woken, self.check_children())
        return exit_code

    def log_exit(self, child: SupervisedProcess, code: int) -> None:
        logger.error("%s process %d ended with %s", self.kind, child.pid, how_it_ended(code))

    def _replace(self) -> None:
        now = time.monotonic()
        due = [child for at, child in self._due if at <= now]
        self._due = [(at, child) for at, child in self._due if at > now]
        for child in due:
            if not self._stopping:
                self._spawn(child)

    def check_children(self) -> float | None:
        """Check running children; returns the seconds until the next check, or None."""
        return None

    def _sleep(self, woken: int, longest: float | None) -> None:
        """Until a child ends, a signal arrives, or a replacement or check is due. A signal before the call counts."""
        waits = [max(0.0, at - time.monotonic()) for at, _ in self._due]
        if longest is not None:
            waits.append(longest)
        if select.select([woken], [], [], min(waits, default=None))[0]:
            os.read(woken, 4096)

    def stop(self) -> None:
        """Each call sends SIGTERM to the children. The first one starts the timer that kills them."""
        if not self._stopping:
            self._stopping = True
            signal.setitimer(signal.ITIMER_REAL, self.patience())
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for pid in list(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill_the_rest(self) -> None:
        """A child whose event loop hangs does not react to SIGTERM."""
        for pid in list(self._children):
            logger.error("%s process %d does not stop and is killed", self.kind, pid)
        self._send(signal.SIGKILL)

    def replace(self, child: SupervisedProcess) -> None:
        """Start another process in its place: now, or later if it keeps dying right after its start."""
        if child.is_replaced:
            return
        failures = failures_in_a_row(child.failures, time.monotonic() - child.started_at)
        self._due.append(
            (
                time.monotonic() + pause_before_next(failures),
                SupervisedProcess(child.index, str(uuid.uuid4()), failures=failures),
            )
        )

    def _spawn(self, child: SupervisedProcess) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        # Signals are blocked until the child is registered, so that they reach it too.
        held = (*SIGNALS, *self.passes_on)
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        parent = os.getpid()
        child.started_at = time.monotonic()
        try:
            pid = os.fork()
        except OSError as exc:  # no memory, or too many processes: the other children go on
            signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
            logger.error("a %s process cannot be started: %s; trying again", self.kind, exc)
            self.replace(child)
            return
        if pid == 0:
            self._live_as_child(child, parent)
        child.pid = pid
        self._children[pid] = child
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        if self._stopping:
            os.kill(pid, signal.SIGTERM)

    def _live_as_child(self, child: SupervisedProcess, parent: int) -> NoReturn:
        code = 1
        try:
            end_with_parent(parent, signal.SIGTERM)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGALRM, *self.passes_on):
                signal.signal(number, signal.SIG_DFL)
            begin_as_child()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            code = self.live(child)
        except ConfigError as exc:
            logger.error("%s", exc)
            code = EXIT_CONFIG
        except StoreError as exc:
            logger.error("%s", exc)
            code = EXIT_NO_REDIS
        except BaseException:  # logged, then the child exits
            logger.exception("%s process failed", self.kind)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            logging.shutdown()
            os._exit(code)


def how_it_ended(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def failures_in_a_row(before: int, lived: float) -> int:
    """Only children that die within 5 seconds count."""
    return 0 if lived > 5.0 else before + 1


def pause_before_next(failures: int) -> float:
    """Seconds before a child is replaced."""
    return min(0.1 * 2.0**failures, 10.0) if failures else 0.0


def _without_arguments(handler: Callable[[], None]) -> Callable[[int, object], None]:
    return lambda number, frame: handler()


@contextlib.contextmanager
def _woken_by_signals(handlers: _Handlers) -> Iterator[int]:
    """A file descriptor that becomes readable after every signal, including SIGCHLD."""
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    before = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda number, frame: None)}
    for number, handler in handlers.items():
        before[number] = signal.signal(number, _without_arguments(handler))
    wakes_before = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    try:
        yield woken
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(wakes_before)
        for number, previous in before.items():
            signal.signal(number, previous)
        os.close(woken)
        os.close(wakes)
