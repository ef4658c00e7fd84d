"""Every example runs as it is, as a process of its own, and prints what it promises."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.servers import RealServer, free_port
from tests.support.waiting import PATIENCE, until_sync

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

# What each prints, as a pattern; order_per_key and limits are run by tests/order, progress by tests/browser.
PRINTED = {
    "hello.py": r"hello world!\nhello later\.\.\.",
    "delayed_and_retried.py": (
        r"scheduled\norder 7 paid at attempt 3\nin time\narchived: SkipRetry: there is no order -1"
    ),
    "cron.py": r"one second apart: \[1, 1\]\neach once: True",
    "unique.py": r"asked for: 30 stored: 3\nrefreshed: \[0, 1, 2\]\nagain: True",
    "groups.py": r"to ann: eve1: hello, eve2: hello, eve3: hello\nto bob: eve1: hello, eve2: hello, eve3: hello",
    "graceful_stop.py": (
        r"stopped with exit code 0\npending again; attempts that failed: 0\n"
        r"0\.6 s: attempt 1 in the first worker\n3600\.0 s: attempt 1 in the second worker"
    ),
    "go_and_python/worker.py": r'resized /a-64\.png\nfor Go: thumbnail:ready \{"path":"/a-64\.png"\}',
}
ELSEWHERE = {
    "order_per_key.py": "tests/order/test_docs.py",
    "limits.py": "tests/order/test_docs.py",
    "progress/main.py": "tests/browser/",
    "fastapi_app/main.py": "here",
    "django_app/manage.py": "here",
    "shop/run.py": "tests/docs/test_shop.py",
    **{
        f"workflows/{name}.py": "tests/durable/test_examples.py"
        for name in ("agent", "approval", "nightly", "order_saga")
    },
}


def environment(server: RealServer) -> dict[str, str]:
    """That of a person: tests of Django in the same process name their own settings."""
    kept = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    return kept | {"VEREDUS_REDIS_URL": server.url}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example(name: str, valkey_server: RealServer) -> None:
    ended = subprocess.run(
        [sys.executable, EXAMPLES / name], env=environment(valkey_server), capture_output=True, text=True, timeout=90
    )
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(PRINTED[name], ended.stdout.strip()), ended.stdout


@contextmanager
def running(server: RealServer, folder: str, *commands: list[str]) -> Iterator[None]:
    """Processes in the folder of an example; ended by SIGTERM, to the last."""
    started = [
        subprocess.Popen(
            [sys.executable, *command], cwd=EXAMPLES / folder, env=environment(server), start_new_session=True
        )
        for command in commands
    ]
    try:
        yield
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def ask(method: str, url: str, wanted: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer, once the server is up and the answer has what is wanted."""

    def answer() -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = httpx.request(method, url).json()
        except (httpx.TransportError, ValueError):
            return None
        return found if (wanted or {}).items() <= found.items() else None

    return dict(until_sync(answer, seconds=60, what=f"an answer of {url} with {wanted}"))


def test_fastapi_under_uvicorn_with_reload(valkey_server: RealServer) -> None:
    port = free_port()
    command = ["-m", "uvicorn", "main:web", "--reload", "--port", str(port), "--log-level", "warning"]
    with running(valkey_server, "fastapi_app", command):
        task = ask("POST", f"http://127.0.0.1:{port}/reports/7")["task"]
        found = ask("GET", f"http://127.0.0.1:{port}/tasks/{task}", {"state": "completed"})
        assert found["result"] == {"order": 7, "pages": 3}


def test_django(valkey_server: RealServer) -> None:
    port = free_port()
    web = ["manage.py", "runserver", "--noreload", "--skip-checks", str(port)]
    with running(valkey_server, "django_app", web, ["manage.py", "veredus_worker"]):
        task = ask("POST", f"http://127.0.0.1:{port}/orders/7")["task"]
        found = ask("GET", f"http://127.0.0.1:{port}/tasks/{task}", {"status": "SUCCESSFUL"})
        assert found["result"] == "order 7 confirmed"


def test_every_example_is_run_somewhere() -> None:
    programs = {
        path.relative_to(EXAMPLES).as_posix()
        for path in EXAMPLES.rglob("*.py")
        if "__main__" in path.read_text(encoding="utf-8")
    }
    assert programs == PRINTED.keys() | ELSEWHERE.keys()
    for place in set(ELSEWHERE.values()) - {"here"}:
        assert (ROOT / place).exists()
