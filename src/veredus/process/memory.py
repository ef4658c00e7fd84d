"""The memory use of this process."""

from __future__ import annotations

import os
import resource
import sys


def resident_mb() -> int:
    """Resident megabytes now; on systems without /proc, the peak."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1_000_000
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak // 1_000_000 if sys.platform == "darwin" else peak // 1000
