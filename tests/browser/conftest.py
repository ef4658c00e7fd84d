"""The example's page in a real, headless Chromium; run by `make browser`, which sets VEREDUS_TEST_BROWSER."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.leaks import SharedServers, nothing_left_behind
from tests.support.servers import NoBinary, RealServer

collect_ignore_glob = [] if os.environ.get("VEREDUS_TEST_BROWSER") else ["test_*.py"]

ROOT = Path(__file__).parent.parent.parent
ARTIFACTS = ROOT / "artifacts"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> None:
    """Not after each test: the dashboards, with their apps and servers, are shared by the tests of a module."""


@pytest.fixture(scope="module", autouse=True)
def _nothing_left_behind_by_a_module(
    request: pytest.FixtureRequest, shared_servers: SharedServers, browser: Any, page_url: str
) -> Iterator[None]:
    """The browser and the example are there for all modules: they are started before it looks for the first time."""
    with nothing_left_behind(request.node.nodeid, shared_servers):
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    program = os.environ.get("VEREDUS_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no Chromium is installed here ({', '.join(NAMES)}): the page was NOT TESTED in a browser")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=20_000)

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield started
        started.close()


def program(file: Path, *arguments: str) -> Iterator[str]:
    """The address that a program says, which runs on a server of its own until the end."""
    try:
        server = RealServer("valkey")
    except NoBinary as exc:
        pytest.skip(str(exc))
    process = subprocess.Popen(
        [sys.executable, str(file), *arguments],
        env=os.environ | {"VEREDUS_REDIS_URL": server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
                yield found[0]
                break
        else:
            pytest.fail(f"{file.name} ended with {process.wait()}: {said}")
    finally:
        process.terminate()
        process.wait(20)
        server.close()


@pytest.fixture(scope="session")
def page_url() -> Iterator[str]:
    """The example as a person starts it."""
    yield from program(ROOT / "examples/progress/main.py", "--port", "0")


class Watched:
    """A page whose every word to the console and every request is kept."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.addresses: list[str] = []
        page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.addresses.append(request.url))
        page.on("websocket", lambda socket: self.addresses.append(socket.url))

    def picture(self, name: str) -> None:
        ARTIFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=str(ARTIFACTS / f"progress-{name}.png"), full_page=True)

    def seen(self) -> dict[str, int]:
        """What the page's own check counted, out of its reach to embellish: read from the module, not from the text."""
        found: dict[str, int] = self.page.evaluate("() => ({...veredus.seen, ...veredus.session.stats})")
        return found


@pytest.fixture
def watched(browser: Any, page_url: str) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, service_workers="block")
    one = Watched(context.new_page())
    one.page.set_default_timeout(20_000)
    one.page.goto(page_url)
    yield one
    context.close()
    assert one.complaints == [], "the console must stay clean"
    assert {urlsplit(address).hostname for address in one.addresses} == {"127.0.0.1"}, "no request leaves the machine"
