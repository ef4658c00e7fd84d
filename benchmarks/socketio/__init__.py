"""Socket.IO with its Redis streams adapter beside the gateway, where Node and npm are at hand."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

from benchmarks.server import bench_server, process_cpu

CLIENTS = 50
HERE = Path(__file__).parent
INSTALLED = Path(".bench/socketio")


def available() -> bool:
    """Installs what it needs with npm, once; False without Node or when that fails."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return False
    INSTALLED.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "roles.mjs"):
        shutil.copy(HERE / name, INSTALLED / name)
    if (INSTALLED / "node_modules" / "socket.io").is_dir():
        return True
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
    return subprocess.run(command, cwd=INSTALLED, check=False, capture_output=True, timeout=180).returncode == 0


def delivered(redis_port: int, port: int, seconds: float) -> tuple[float, float]:
    """Messages/s through one Socket.IO server to as many clients, unacknowledged, and its CPU per message in us."""
    with bench_server(tcp_port=redis_port):
        server = _role("serve", redis_port, port)
        time.sleep(1.0)
        reader = _role("read", redis_port, port, CLIENTS, seconds)
        producer = None
        try:
            assert reader.stdout is not None
            reader.stdout.readline()
            producer = _role("produce", redis_port, port, CLIENTS, seconds + 3)
            time.sleep(1.5)
            cpu, began = process_cpu(server.pid), time.perf_counter()
            rate = float(json.loads(reader.stdout.readline())["rate"])
            used, took = process_cpu(server.pid) - cpu, time.perf_counter() - began
        finally:
            for process in (server, reader, producer):
                if process is not None:
                    process.kill()
                    process.wait()
    return rate, used / took / max(rate, 1) * 1e6


def _role(role: str, *arguments: float) -> subprocess.Popen[str]:
    command = ["node", "roles.mjs", role, *map(str, arguments)]
    return subprocess.Popen(command, cwd=INSTALLED, stdout=subprocess.PIPE, text=True)
