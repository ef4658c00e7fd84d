"""Insistence: a stop that a hung event loop does not hear ends the process all the same."""

from __future__ import annotations

import logging
import os
import sys
import threading

logger = logging.getLogger("veredus.worker")


class Insistence:
    """Armed from a signal handler, which Python runs between two steps of whatever blocks the loop. Unless it is called
    off, the process then ends by itself; its tasks are recovered when their leases run out."""

    def __init__(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._timer: threading.Timer | None = None

    def arm(self, seconds: float) -> None:
        """The process has so many seconds from now; a later call counts instead of an earlier one."""
        self.call_off()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def call_off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        logger.critical("the event loop hangs and does not stop: this process ends, its tasks will be recovered")
        sys.stderr.flush()
        os._exit(self._exit_code)
