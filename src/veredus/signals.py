"""Signals that ask a process to stop: heard before anybody can see the process, and kept until somebody listens."""

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

logger = logging.getLogger("veredus.signals")

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopWanted(BaseException):
    """Ends what runs before there is anything to stop, such as the import of an app."""


class StopSignals:
    """What this process does when it is asked to stop. Made by `stop_signals`."""

    def __init__(self, *, interrupts: bool = False) -> None:
        self._interrupts = interrupts
        self._listener: Callable[[], None] | None = None
        self._kept = 0
        """How often it was asked while nobody listened."""
        self._before: dict[int, Any] = {}

    def hear(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            self._before[number] = signal.signal(number, self._heard)

    def _heard(self, number: int, frame: object) -> None:
        """Python runs this between two steps of whatever runs, also while a handler blocks the event loop."""
        if self._listener is not None:
            self._listener()
            return
        self._kept += 1
        if self._interrupts:
            self._interrupts = False  # what it ends must be able to clean up
            raise StopWanted

    def tell(self, listener: Callable[[], None]) -> None:
        """Call this for every time that it is asked from now on, and for those that were kept."""
        self._listener = listener
        kept, self._kept = self._kept, 0
        for _ in range(kept):
            listener()

    def tell_loop(self, listener: Callable[[], None]) -> None:
        """The same, in the running event loop."""
        loop = asyncio.get_running_loop()

        def told() -> None:
            with contextlib.suppress(RuntimeError):  # closed: there is nothing left to stop
                loop.call_soon_threadsafe(listener)

        self.tell(told)

    def ignore(self) -> None:
        """There is nothing left to stop."""
        self._listener = _nothing

    def end_with(self, code: int) -> None:
        """All is done: whoever asks once more need not wait for threads that an app left behind."""

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
    """SIGTERM and SIGINT, heard from now on. Whoever is inside another one shares it.

    With `interrupts`, the first signal raises StopWanted if nobody listens yet. Without `restores`, a process that is
    about to end goes on hearing them."""
    global _current
    if threading.current_thread() is not threading.main_thread():
        yield StopSignals()  # no other thread may hear signals: somebody else has to stop what runs there
        return
    if _current is not None:
        try:
            yield _current
        finally:
            _current.ignore()
        return
    _current = signals = StopSignals(interrupts=interrupts)
    try:
        signals.hear(*SIGNALS)
        yield signals
    except BaseException as exc:
        restores = restores or not isinstance(exc, StopWanted)
        raise
    finally:
        if restores:
            _current = None
            signals.restore()


def begin_as_child() -> None:
    """After a fork, with SIGTERM blocked: what the parent does about signals is no longer ours."""
    global _current
    _current = StopSignals()
    _current.hear(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor passes it on


async def done_unless(wanted: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work, but call it off as soon as a stop is wanted; says whether it was done."""
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
        logger.warning("what was called off failed", exc_info=error)
    return not doing.cancelled() and doing.exception() is None
