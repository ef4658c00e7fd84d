"""`veredus dev`: the worker restarts when a file changes, also after one that could not be imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.processes import running, veredus
from tests.support.servers import RealServer, free_port
from tests.support.waiting import PATIENCE, pause_sync, until_sync
from veredus.cli.dev import POLL_INTERVAL

SHOP = """
from pathlib import Path
from veredus import App

app = App()

@app.task(name="note")
def note() -> None:
    Path("said.txt").write_text("{text}")

if __name__ == "__main__":
    note.enqueue_sync()
"""


def test_reload_errors_and_dashboard(valkey_server: RealServer, tmp_path: Path) -> None:
    shop, said, log = tmp_path / "shop.py", tmp_path / "said.txt", tmp_path / "log.txt"
    shop.write_text(SHOP.format(text="first"))
    environment = {**os.environ, "VEREDUS_REDIS_URL": valkey_server.url}
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "veredus",
        "dev",
        "shop:app",
        "--dash",
        "--dash-port",
        str(port),
        "--concurrency",
        "3",
    ]

    def says(text: str) -> bool:
        return said.exists() and said.read_text() == text

    def enqueue() -> None:
        subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, env=environment, check=True, timeout=30)

    with (
        log.open("w") as output,
        running(command, cwd=tmp_path, env=environment, stdout=output, stderr=output) as process,
    ):
        enqueue()
        until_sync(lambda: says("first"), what="the first worker")
        assert "with 3 slots" in log.read_text(), "unknown options go to the worker"
        until_sync(lambda: f":{port}/" in log.read_text(), what="the dashboard")
        shop.write_text("this is no Python")
        until_sync(lambda: "it restarts at the next change" in log.read_text(), what="the broken worker")
        shop.write_text(SHOP.format(text="second"))
        enqueue()
        until_sync(lambda: says("second"), what="the second worker")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert "changed, restarting the worker" in log.read_text()


def test_it_watches_the_folders_that_it_is_told_and_serves_no_dashboard_if_not_wanted(
    valkey_server: RealServer, tmp_path: Path
) -> None:
    here, there, log = tmp_path / "here", tmp_path / "there", tmp_path / "log.txt"
    for folder in (here, there):
        folder.mkdir()
    (here / "shop.py").write_text(SHOP.format(text="first"))
    (there / "data.toml").write_text("n = 1")
    environment = {**os.environ, "VEREDUS_REDIS_URL": "unix:///nowhere/s"}
    command = veredus("dev", "shop:app", "--redis", valkey_server.url, "--watch", str(there), "--no-dash")
    with log.open("w") as output, running(command, cwd=here, env=environment, stdout=output, stderr=output) as process:
        until_sync(lambda: log.read_text().count(" serves ") == 1, what="the worker")
        (here / "shop.py").write_text(SHOP.format(text="second"))
        pause_sync(3 * POLL_INTERVAL, proves="a change elsewhere starts nothing anew")
        assert "changed" not in log.read_text()
        (there / "data.toml").write_text("n = 22")
        until_sync(lambda: log.read_text().count(" serves ") == 2, what="the worker after the change")
        assert f"dev: {there / 'data.toml'} changed, restarting the worker" in log.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert "dashboard" not in log.read_text()
