"""A family of processes: forked by one parent that waits for them, replaces the dead and passes a stop on to all."""

from __future__ import annotations

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
from veredus.signals import SIGNALS, StopSignals, begin_as_child, stop_signals
from veredus.worker.parentage import end_with_parent

logger = logging.getLogger("veredus.supervisor")

_Handlers = dict[signal.Signals, Callable[[], None]]

EXIT_CONFIG = 2
EXIT_NO_REDIS = 3


@dataclass(slots=True)
class Child:
    index: int
    """Which one of the family it is."""
    name: str
    pid: int = 0
    started_at: float = 0.0
    failures: int = 0
    """How often in a row it and those it replaces have died as soon as they started."""
    is_replaced: bool = False
    """Whether another one has taken its place already."""


class Family:
    """What supervisors of workers and of gateways have in common: `live` is what a child does, `ended` what follows."""

    kind = "worker"
    passes_on: tuple[signal.Signals, ...] = ()
    """Signals that children get too, besides those that ask for a stop."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._children: dict[int, Child] = {}
        self._stopping = False
        self._due: list[tuple[float, Child]] = []
        """When children that died are to be replaced, on the monotonic clock."""

    def live(self, child: Child) -> int:
        raise NotImplementedError

    def ended(self, child: Child, code: int) -> int:
        """What it adds to the exit code; may ask for a replacement."""
        raise NotImplementedError

    def patience(self) -> float:
        """Seconds after which a child that does not stop is killed."""
        raise NotImplementedError

    def look_first(self, signals: StopSignals) -> None:
        """Before the first child; sets `_stopping` if a stop is wanted meanwhile."""

    def run(self) -> int:
        with stop_signals() as signals:
            self.look_first(signals)
            handlers: _Handlers = {signal.SIGALRM: self._kill_the_rest}
            for number in self.passes_on:
                handlers[number] = functools.partial(self._send, number)
            with _woken_by_signals(handlers) as woken:
                signals.tell(self.stop)
                logger.info("supervisor %d starts %d %s processes", os.getpid(), self._size, self.kind)
                for index in range(self._size):
                    if not self._stopping:
                        self._spawn(Child(index, str(uuid.uuid4())))
                return self._wait(woken)

    def _wait(self, woken: int) -> int:
        """Until no child is left."""
        exit_code = 0
        while self._children or (self._due and not self._stopping):
            pid, status = os.waitpid(-1, os.WNOHANG) if self._children else (0, 0)
            child = self._children.pop(pid, None)
            if child is not None:
                exit_code = max(exit_code, self.ended(child, os.waitstatus_to_exitcode(status)))
            elif not pid:
                self._replace()
                self._sleep(woken, self.tend())
        return exit_code

    def complain(self, child: Child, code: int) -> None:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        logger.error("%s process %d ended with %s", self.kind, child.pid, how)

    def _replace(self) -> None:
        now = time.monotonic()
        ripe = [child for at, child in self._due if at <= now]
        self._due = [(at, child) for at, child in self._due if at > now]
        for child in ripe:
            if not self._stopping:
                self._spawn(child)

    def tend(self) -> float | None:
        """Look after children that live; returns in how many seconds to do so again."""
        return None

    def _sleep(self, woken: int, longest: float | None) -> None:
        """Until a child ends, a signal comes, a child is to be replaced or looked after; one that came just now is not
        overlooked."""
        waits = [max(0.0, at - time.monotonic()) for at, _ in self._due]
        if longest is not None:
            waits.append(longest)
        if select.select([woken], [], [], min(waits, default=None))[0]:
            os.read(woken, 4096)

    def stop(self) -> None:
        """Also one that is asked for again: it reaches the children as often."""
        if not self._stopping:
            self._stopping = True
            signal.setitimer(signal.ITIMER_REAL, self.patience())
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for pid in list(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill_the_rest(self) -> None:
        """A child whose event loop hangs hears no SIGTERM: its time is up, its tasks are given back."""
        for pid in list(self._children):
            logger.error("%s process %d does not stop: it is killed", self.kind, pid)
        self._send(signal.SIGKILL)

    def replace(self, child: Child) -> None:
        """By another one, now or, if it keeps dying, a little later; unless that has been done."""
        if child.is_replaced:
            return
        failures = failures_in_a_row(child.failures, time.monotonic() - child.started_at)
        self._due.append(
            (time.monotonic() + pause_before_next(failures), Child(child.index, str(uuid.uuid4()), failures=failures))
        )

    def _spawn(self, child: Child) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        # Signals wait until the child is on record: one that comes in between must reach it too.
        held = (*SIGNALS, *self.passes_on)
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        parent = os.getpid()
        child.started_at = time.monotonic()
        try:
            pid = os.fork()
        except OSError as exc:  # no memory, or too many processes: those that run are not to end for it
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

    def _live_as_child(self, child: Child, parent: int) -> NoReturn:
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
        except BaseException:
            logger.exception("%s process failed", self.kind)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            logging.shutdown()
            os._exit(code)


def failures_in_a_row(before: int, lived: float) -> int:
    """Only a child that dies as soon as it starts is suspect."""
    return 0 if lived > 5.0 else before + 1


def pause_before_next(failures: int) -> float:
    """Seconds before a child is replaced: such a child is not restarted in a circle. The others do not wait for it."""
    return min(0.1 * 2.0**failures, 10.0) if failures else 0.0


def _without_arguments(handler: Callable[[], None]) -> Callable[[int, object], None]:
    return lambda number, frame: handler()


@contextlib.contextmanager
def _woken_by_signals(handlers: _Handlers) -> Iterator[int]:
    """A file descriptor that can be read after every signal, also when a child has ended."""
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
