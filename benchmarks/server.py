"""A server for benchmarks: Valkey from the wheel, on a unix socket, started as the embedded one is."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from veredus.embedded import find_binary
from veredus.embedded.launch import environment


@dataclass(frozen=True)
class BenchServer:
    socket: str
    pid: int
    client: Any

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def flush(self) -> None:
        """Delete everything and wait for it: what is freed in the background would disturb the next measurement."""
        self.client.execute_command("FLUSHALL", "SYNC")

    @contextmanager
    def without_log(self) -> Iterator[None]:
        """Without the append-only file, as a server out of the box."""
        self.client.config_set("appendonly", "no")
        try:
            yield
        finally:
            self.flush()
            self.client.config_set("appendonly", "yes")
            while self.client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.01)

    def cpu_seconds(self) -> float:
        info = self.client.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"])

    def script_calls(self) -> int:
        """How many scripts clients have called so far."""
        stats = self.client.info("commandstats")
        return sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "eval"))


@contextmanager
def bench_server(*, tcp_port: int = 0) -> Iterator[BenchServer]:
    with tempfile.TemporaryDirectory(prefix="vb-") as folder:
        socket = str(Path(folder) / "s")
        command = [
            find_binary().path, "--port", str(tcp_port), "--bind", "127.0.0.1", "--unixsocket", socket, "--dir", folder,
            "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction",
            "--auto-aof-rewrite-percentage", "0",
        ]  # fmt: skip
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = redis.Redis(unix_socket_path=socket)
        try:
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    time.sleep(0.02)
            yield BenchServer(socket, process.pid, client)
        finally:
            client.close()
            process.kill()
            process.wait()


def process_cpu(pid: int) -> float:
    """CPU seconds of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
