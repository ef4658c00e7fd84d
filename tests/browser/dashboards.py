"""A dashboard with everything behind it, as processes: server, worker, gateway with a client, the dashboard."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.browser import shop
from tests.support.servers import NoBinary, RealServer
from tests.support.waiting import PATIENCE, until_sync

ROOT = Path(__file__).parent.parent.parent
ARTIFACTS = ROOT / "artifacts"
TOKEN = "the-token-of-the-browser-tests"
SCRIPT = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'


class Place:
    """One server with a dashboard. `api` asks it as a program does."""

    def __init__(self, *options: str) -> None:
        try:
            self.server = RealServer("valkey", "--enable-debug-command", "local")
        except NoBinary as exc:
            pytest.skip(str(exc))
        self.redis = self.server.client()
        self._processes: list[subprocess.Popen[str]] = []
        self._options = options
        self.address = self.serve(0)
        self.client = httpx.Client(
            base_url=self.address, headers={"authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE
        )

    def serve(self, port: int) -> str:
        """Start the dashboard (again); gives its address."""
        self.dash = self.start("dash", "--port", str(port), "--refresh", "0.2", "--token", TOKEN, *self._options)
        return _find(r"http://127\.0\.0\.1:\d+/", self.dash)

    def start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "veredus", *command],
            cwd=ROOT,
            env=os.environ | {"VEREDUS_REDIS_URL": self.server.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._processes.append(process)
        return process

    def get(self, name: str, **query: Any) -> Any:
        answer = self.client.get(f"api/{name}", params=query)
        answer.raise_for_status()
        return answer.json()

    def counts(self, queue: str) -> dict[str, int]:
        """Of a queue; nothing in one that nobody has used yet."""
        found: dict[str, int] = defaultdict(int)
        for row in self.get("overview")["queues"]:
            if row["queue"] == queue:
                found |= row
        return found

    def close(self) -> None:
        self.client.close()
        for process in self._processes:
            process.terminate() if process is self.dash else process.kill()  # a worker would wait for its tasks
        for process in self._processes:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.server.close()


class Shop(Place):
    """The same with a worker and a gateway that have real work."""

    def __init__(self) -> None:
        super().__init__()
        shop.app.use(self.server.url)
        queues = "mail=3,images=2,reports=1,ledger=1"
        self.start("worker", "tests.browser.shop:app", "--queues", queues, "--concurrency", "10")
        gateway = self.start(
            "gateway", "tests.browser.shop:app", "--ws", "127.0.0.1:0", "--quic", "off", "--http", "off"
        )
        self.fill()
        place = _find(r"127\.0\.0\.1:\d+", gateway)
        self._connection = connect(f"ws://{place}/", subprotocols=[Subprotocol("veredus.gw.1.json")])
        self._socket = self._connection.__enter__()
        self._socket.send(json.dumps({"t": "hello", "version": 1, "token": ""}) + "\n")
        assert "welcome" in str(self._socket.recv(timeout=PATIENCE))
        self._answering = threading.Thread(target=self._answer_pings, daemon=True)
        self._answering.start()
        until_sync(self._ready, what="work in every state")

    def _answer_pings(self) -> None:
        """Or the gateway takes the client for gone, while slow tests still expect its session to be attached."""
        with contextlib.suppress(ConnectionClosed):
            for text in self._socket:
                for frame in map(json.loads, str(text).splitlines()):
                    if frame["t"] == "ping":
                        self._socket.send(json.dumps({"t": "pong", "echo": frame.get("echo", 0)}) + "\n")

    def fill(self) -> None:
        app = shop.app
        app.enqueue_many_sync(shop.send.call(n) for n in range(200))
        shop.send.using(task_id="send-11").enqueue_sync(11)
        shop.confirm.enqueue_sync(7)
        app.enqueue_many_sync(shop.resize.call(n) for n in range(120))
        app.enqueue_many_sync(
            app.call("later", {"n": n, "html": SCRIPT}, queue="mail", delay=3000 + n, task_id=f"later-{n:03}")
            for n in range(130)
        )
        app.enqueue_sync(SCRIPT, {"html": SCRIPT}, queue="mail", delay=9000, task_id="script", headers={"x": SCRIPT})
        shop.build.enqueue_sync(6)
        for account in (0, 0, 1, 1, 1):
            shop.book.using(order_key=f"account-{account}").enqueue_sync(account)
        for n in range(4):
            shop.send.using(group="digest").enqueue_sync(n)
        app.enqueue_sync("nobody", {"n": 1}, queue="idle")

    def _ready(self) -> bool:
        mail, images = self.counts("mail"), self.counts("images")
        return (
            mail["retry"] >= 20
            and mail["archived"] >= 20
            and images["completed"] >= 120
            and self.counts("reports")["active"] == 1
            and bool(self.get("servers")["servers"])
            and bool(self.get("gateway")["sessions"])
            and bool(self.get("schedules")["schedules"])
        )

    def close(self) -> None:
        self._connection.__exit__(None, None, None)
        self._answering.join()
        shop.app.close_sync()
        super().close()


class Watched:
    """A page whose every word to the console and every request is kept."""

    def __init__(self, page: Any, place: Place) -> None:
        self.page, self.place = page, place
        self.complaints: list[str] = []
        self.addresses: list[str] = []
        page.set_default_timeout(15_000)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(f"{error}\n{error.stack}"))
        page.on("request", lambda request: self.addresses.append(request.url))

    def _hear(self, said: Any) -> None:
        if said.type in ("error", "warning"):
            self.complaints.append(f"{said.text} {said.location}")

    def enter(self, route: str = "#/") -> None:
        self.page.goto(f"{self.place.address}#token={TOKEN}")
        self.page.wait_for_selector("main h1")
        self.go(route)

    def go(self, route: str) -> None:
        self.page.evaluate("route => { location.hash = route }", route)
        self.page.wait_for_function("() => !document.querySelector('main .loading')")

    def picture(self, name: str, *, full: bool = True) -> None:
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=str(ARTIFACTS / f"dashboard-{name}.png"), full_page=full)

    def check(self) -> None:
        assert self.complaints == [], "the console must stay clean"
        hosts = {urlsplit(address).hostname for address in self.addresses}
        assert hosts == {"127.0.0.1"}, "no request leaves the machine"


def axe_source() -> str:
    """axe-core, fetched once with npm; skips where that cannot be done."""
    kept = ROOT / ".pytest_cache" / "axe-core"
    script = kept / "package" / "axe.min.js"
    if not script.exists():
        kept.mkdir(parents=True, exist_ok=True)
        try:
            done = subprocess.run(
                ["npm", "pack", "axe-core@4"], cwd=kept, capture_output=True, text=True, timeout=90, check=True
            )
        except (OSError, subprocess.SubprocessError) as exc:
            pytest.skip(f"axe-core cannot be fetched here ({exc}): accessibility was NOT TESTED with it")
        with tarfile.open(kept / done.stdout.split()[-1]) as archive:
            archive.extractall(kept, filter="data")
    return script.read_text()


def _find(pattern: str, process: subprocess.Popen[str]) -> str:
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        said += line
        if found := re.search(pattern, line):
            return found[0]
    raise AssertionError(f"it ended with {process.wait()}: {said}")
