"""Counts runs inside a peer's worker and notes when 10 % and 90 % of them were done. Standard library only."""

from __future__ import annotations

import os
import sys
import time

URL = os.environ.get("PEER_URL", "")
COUNT = int(os.environ.get("PEER_COUNT", "0"))
PAYLOAD = "x" * 87
_done = 0


def tick() -> None:
    """Called by the no-op handler."""
    global _done
    _done += 1
    if _done == COUNT // 10 or _done == COUNT * 9 // 10:
        with open(os.environ["PEER_STAMPS"], "a") as stamps:
            stamps.write(f"{time.perf_counter()} {time.process_time()}\n")


def mode() -> str:
    return sys.argv[1] if len(sys.argv) > 1 else "work"
