"""Compiles what the live tests need, before they start: a cold build takes longer than a test may.

Go keeps what it has compiled, so each test process gets its programs within a second or two.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.peers.sides import go_side

from tests.interop.live.peer import RELEASES, build, compiled

MONITOR = Path(__file__).parent / "monitor"
SEMAPHORE = Path(__file__).parent / "semaphore"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for release in RELEASES:
            build(folder, release)
        compiled(MONITOR, folder / "monitor")
        compiled(SEMAPHORE, folder / "semaphore")
        go_side(folder)


if __name__ == "__main__":
    main()
