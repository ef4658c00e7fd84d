"""HardExit: ends a process whose event loop hangs and does not react to a stop."""

from __future__ import annotations

import logging
import os
import threading

logger = logging.getLogger("veredus.worker")


class HardExit:
    """Armed from a signal handler, which runs even while a handler blocks the loop. Unless it is cancelled in time, it
    ends the process; the tasks are recovered when their leases expire."""

    def __init__(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._timer: threading.Timer | None = None

    def arm(self, seconds: float) -> None:
        """End the process in this many seconds. Replaces an earlier call."""
        self.cancel()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        logger.critical("the event loop hangs and does not stop: this process exits, and its tasks will be recovered")
        os._exit(self._exit_code)
