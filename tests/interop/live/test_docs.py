"""Go blocks of the pages, and the example in both languages: compiled, and run against a live server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, Block, blocks
from tests.integration.support import FAST
from tests.interop.live.peer import SOURCE, compiled
from tests.support.servers import VALKEY_ONLY, RealServer, free_port
from tests.support.waiting import PATIENCE, until, until_sync
from veredus import App, current

pytestmark = pytest.mark.usefixtures("go")

GO_BLOCKS = [block for page in PAGES for block in blocks(page) if block.language == "go"]
PACKAGES = {
    "asynq": "github.com/hibiken/asynq",
    "context": "context",
    "fmt": "fmt",
    "json": "encoding/json",
}


def build(text: str, folder: Path) -> Path:
    """A program of its own, with the module of the live tests."""
    folder.mkdir()
    for name in ("go.mod", "go.sum"):
        shutil.copy(SOURCE / name, folder / name)
    (folder / "main.go").write_text(text, encoding="utf-8")
    return compiled(folder, folder / "program")


def in_main(block: Block, socket: str) -> str:
    """Statements become a main function, after what the comment before the block says; localhost becomes our server."""
    body = f"{block.first}\n{block.text}".replace('Addr: "localhost:6379"', f'Network: "unix", Addr: "{socket}"')
    used = sorted(path for name, path in PACKAGES.items() if re.search(rf"\b{name}\.", body))
    imports = "".join(f'\t"{path}"\n' for path in used)
    return f"package main\n\nimport (\n{imports})\n\nfunc main() {{\n{body}\n}}\n"


@contextmanager
def running(output: Path, *command: str | Path, **environment: str) -> Iterator[None]:
    """A process that prints into this file; SIGTERM ends it, with 0."""
    with output.open("w") as file:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=file)
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


async def sends_for_python(program: Path, url: str, folder: Path) -> None:
    """docs/go-and-python.md: the handler of the page reads what Go sent."""
    app = App(url)
    got: list[str] = []

    @app.handler("image:resize", queue="images")
    async def resize(path: str, width: int = 128) -> None:
        got.append(f"{path} at {width}")

    assert subprocess.run([program], timeout=PATIENCE).returncode == 0
    async with app, app.worker(**FAST):
        await until(lambda: got == ["/a.png at 64"])


async def runs_what_python_sends(program: Path, url: str, folder: Path) -> None:
    """docs/migrating/asynq.md: the server of the page runs what Python sends."""
    app, printed = App(url), folder / "printed"
    async with app:
        with running(printed, program):
            await app.enqueue("email:welcome", {"user_id": 42}, queue="critical")
            await until(lambda: printed.read_text() == "to 42\n")


async def starts_and_signals(program: Path, url: str, folder: Path) -> None:
    """docs/workflows.md: Go starts a durable task and emits the event that it waits for."""
    app = App(url)

    @app.task(name="fulfil", queue="orders", retention=60)
    async def fulfil(order: int) -> str:
        answer = await current().wait_for(f"approved:{order}", timeout=60)
        return f"approved by {answer['by']}"

    assert subprocess.run([program], timeout=PATIENCE).returncode == 0
    async with app, app.worker(**FAST):
        assert await app.handle("order-7", queue="orders").result(timeout=30) == "approved by ada"


RUNS: dict[str, Callable[[Path, str, Path], Awaitable[None]]] = {
    "docs/go-and-python.md": sends_for_python,
    "docs/migrating/asynq.md": runs_what_python_sends,
    "docs/workflows.md": starts_and_signals,
}


@VALKEY_ONLY
@pytest.mark.parametrize("block", GO_BLOCKS, ids=lambda block: block.place)
async def test_a_go_block_compiles_and_does_what_its_page_says(
    block: Block, server: RealServer, tmp_path: Path
) -> None:
    program = build(in_main(block, server.socket), tmp_path / "go")
    await RUNS[block.page.relative_to(ROOT).as_posix()](program, server.url, tmp_path)


def test_the_example_in_both_languages(new_server: Callable[..., RealServer], tmp_path: Path) -> None:
    """Go sends for Python, Python sends for Go."""
    example = ROOT / "examples" / "go_and_python"
    server = new_server(port=free_port())
    program = build((example / "main.go").read_text(encoding="utf-8"), tmp_path / "go")
    python, go = tmp_path / "python.out", tmp_path / "go.out"
    worker = [sys.executable, "-u", "-m", "veredus", "worker", "worker:app", "--redis", server.url]
    with (
        running(python, *worker, PYTHONPATH=str(example)),
        running(go, program, REDIS_ADDR=f"127.0.0.1:{server.port}"),
    ):
        until_sync(lambda: "resized /a-64.png" in python.read_text())
        until_sync(lambda: 'from Python: {"path":"/a-64.png"}' in go.read_text())
    assert re.match(r"sent [\w-]+ to Python\n", go.read_text())
