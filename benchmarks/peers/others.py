"""Other queues for Python, each in an environment of its own: how fast one worker process drains no-op tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.server import BenchServer

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Peer:
    """`count` is small for slow ones: a rate needs a second or two, not a fixed number."""

    name: str
    packages: tuple[str, ...]
    count: int
    at_least_once: str


PEERS = (
    Peer("rq", ("rq",), 1_000, "no: a killed worker's job fails"),
    Peer("celery", ("celery[redis]",), 4_000, "yes, after the visibility timeout (1 h)"),
    Peer("streaq", ("streaq",), 4_000, "yes"),
    Peer("arq", ("arq",), 6_000, "yes"),
    Peer("saq", ("saq[redis]", "typing_extensions"), 6_000, "with retries set"),
    Peer("bullmq", ("bullmq",), 6_000, "yes"),
    Peer("taskiq", ("taskiq", "taskiq-redis"), 8_000, "yes (stream)"),
    Peer("dramatiq", ("dramatiq[redis]",), 8_000, "yes"),
)


def install(peer: Peer, folder: Path, console: Console) -> Path:
    """The peer's newest release in an environment of its own, kept for the next time."""
    python = folder / peer.name / "bin" / "python"
    if not (folder / peer.name / ".installed").exists():
        with console.status(f"installing {peer.name}"):
            subprocess.run([sys.executable, "-m", "venv", str(folder / peer.name)], check=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *peer.packages], check=True)
            (folder / peer.name / ".installed").touch()
    return python


def rate(peer: Peer, python: Path, server: BenchServer, url: str, patience: float = 120.0) -> float:
    """Tasks per second between 10 % and 90 % of one run."""
    server.flush()
    with tempfile.NamedTemporaryFile() as stamps:
        environment = {
            **os.environ,
            "PEER_URL": url,
            "PEER_COUNT": str(peer.count),
            "PEER_STAMPS": stamps.name,
        }
        command = [str(python), f"{peer.name}_bench.py"]
        subprocess.run(
            [*command, "fill"], cwd=HERE, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=patience
        )
        worker = subprocess.Popen(
            [*command, "work"],
            cwd=HERE,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            began, ended = _stamped(Path(stamps.name), patience)
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    return peer.count * 0.8 / (ended - began)


def _stamped(path: Path, patience: float) -> tuple[float, float]:
    give_up = time.monotonic() + patience
    while time.monotonic() < give_up:
        lines = path.read_text().splitlines()
        if len(lines) >= 2:
            return float(lines[0].split()[0]), float(lines[1].split()[0])
        time.sleep(0.05)
    raise TimeoutError("the worker did not get through its tasks in time")
