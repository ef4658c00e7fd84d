"""Worker processes under measurement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.server import BenchServer


@contextmanager
def worker(server: BenchServer, *options: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "veredus", "worker", "benchmarks.tasks:app", "--redis", server.url]
    process = subprocess.Popen(
        [*command, "--log-level", "error", *options], env={**os.environ, **environment}, stdout=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
