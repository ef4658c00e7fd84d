"""Stop signals. They are caught from the start of a process, and kept until a listener is set."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NoReturn

logger = logging.getLogger("veredus.process.signals")

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopWanted(BaseException):
    """Interrupts the start of a process, such as the import of an app."""


class StopSignals:
    """The reaction of this process to stop signals. Made by `stop_signals`."""

    def __init__(self, *, interrupts: bool = False) -> None:
        self._interrupts = interrupts
        self._listener: Callable[[], None] | None = None
        self._kept = 0
        """Signals received before a listener was set."""
        self._before: dict[int, Any] = {}

    def catch(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            self._before[number] = signal.signal(number, self._received)

    def _received(self, number: int, frame: object) -> None:
        """Python runs this between two bytecodes, even while a handler blocks the event loop."""
        if self._listener is not None:
            self._listener()
            return
        self._kept += 1
        if self._interrupts:
            self._interrupts = False  # the interrupted code must be able to clean up
            raise StopWanted

    def notify(self, listener: Callable[[], None]) -> None:
        """Call the listener for each signal from now on, and for each one received before."""
        self._listener = listener
        kept, self._kept = self._kept, 0
        for _ in range(kept):
            listener()

    def notify_loop(self, listener: Callable[[], None]) -> None:
        """The same, in the running event loop."""
        loop = asyncio.get_running_loop()

        def schedule() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing left to stop
                loop.call_soon_threadsafe(listener)

        self.notify(schedule)

    def ignore(self) -> None:
        """Ignore signals from now on, because there is nothing left to stop."""
        self._listener = _nothing

    def end_with(self, code: int) -> None:
        """The work is done: exit at the next signal, without waiting for threads that the app left behind."""

        def end() -> NoReturn:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

        self._listener = end

    def restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)


def _nothing() -> None: ...


_current: StopSignals | None = None


@contextlib.contextmanager
def stop_signals(*, interrupts: bool = False, restores: bool = True) -> Iterator[StopSignals]:
    """Catch SIGTERM and SIGINT. A nested call shares the outer one.

    With `interrupts`, the first signal raises StopWanted if no listener is set. Without `restores`, the signals stay
    caught afterwards, for a process that is about to end."""
    global _current
    if threading.current_thread() is not threading.main_thread():
        yield StopSignals()  # only the main thread can catch signals
        return
    if _current is not None:
        try:
            yield _current
        finally:
            _current.ignore()
        return
    _current = signals = StopSignals(interrupts=interrupts)
    try:
        signals.catch(*SIGNALS)
        yield signals
    except BaseException as exc:
        restores = restores or not isinstance(exc, StopWanted)
        raise
    finally:
        if restores:
            _current = None
            signals.restore()


def begin_as_child() -> None:
    """After a fork, with SIGTERM blocked: replace the parent's reaction to signals."""
    global _current
    _current = StopSignals()
    _current.catch(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor forwards it


async def done_unless(wanted: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work, but cancel it as soon as a stop is requested. Returns whether it was completed."""
    if wanted.is_set():
        work.close()
        return False
    doing, asked = asyncio.create_task(work), asyncio.create_task(wanted.wait())
    await asyncio.wait([doing, asked], return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if doing.done():
        doing.result()
        return True
    doing.cancel()
    await asyncio.wait([doing])
    if not doing.cancelled() and (error := doing.exception()) is not None:
        logger.warning("an operation failed while it was cancelled", exc_info=error)
    return not doing.cancelled() and doing.exception() is None
