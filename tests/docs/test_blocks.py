"""Every block of Python in the pages runs as it stands, and every command line is one that the command accepts."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.blocks import PAGES, ROOT, Block, blocks, name
from tests.docs.commands import accept
from tests.support.servers import RealServer
from veredus import App

# Pages with a test of their own: so many of their first blocks of Python are run there.
ELSEWHERE = {
    "docs/dashboard.md": ("tests/dashboard/test_docs.py", 99),
    "docs/gateway-log.md": ("tests/outbox/test_docs.py", 1),
    "docs/gateway.md": ("tests/gateway/test_docs.py", 3),
    "docs/groups.md": ("tests/groups/test_docs.py", 1),
    "docs/inspector.md": ("tests/inspector/test_docs.py", 4),
    "docs/integrations.md": ("tests/contrib/test_docs.py", 99),
    "docs/options.md": ("tests/integration/test_docs_options.py", 1),
    "docs/order-and-limits.md": ("tests/order/test_docs.py", 1),
    "docs/peers.md": ("tests/peer/test_guide.py", 1),
    "docs/servers.md": ("tests/store/test_servers_page.py", 1),
    "docs/telemetry.md": ("tests/telemetry/test_docs.py", 99),
    "docs/testing.md": ("tests/testing/test_docs.py", 99),
}
# What these hold is no program: output, settings, schemas, pictures made of letters.
NO_PROGRAMS = {"", "text", "ini", "toml", "yaml", "json", "proto", "protobuf", "promql"}
SHELL = {"console", "sh", "shell", "bash"}


def python_blocks(page: Path) -> list[Block]:
    skipped = ELSEWHERE.get(name(page), ("", 0))[1]
    return [block for block in blocks(page) if block.language == "python"][skipped:]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, valkey_server: RealServer) -> Iterator[Path]:
    """An empty folder, first on the path, with an empty server; modules of a page are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VEREDUS_REDIS_URL", valkey_server.url)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a page may write one file twice within a second
    yield tmp_path
    for module in pages_modules(tmp_path):
        sys.modules.pop(module.__name__, None)


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=name)
def test_python(page: Path, folder: Path, valkey_server: RealServer) -> None:
    namespace: dict[str, object] = {}
    printed = ""
    run_here = set(python_blocks(page))
    for block in blocks(page):
        if block.comment == "prints":
            assert printed.rstrip() == block.text.rstrip(), block.place
        elif block.language != "python" or block not in run_here:
            continue
        elif block.not_run:
            compile(block.text, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif block.file:
            keep_file(block, folder)
        else:
            if block.comment != "goes on":
                namespace = {"__name__": f"page_{page.stem.replace('-', '_')}"}
                valkey_server.flush()
            printed = run(block, namespace)
    for names in [namespace, *map(vars, pages_modules(folder))]:
        for value in names.values():
            if isinstance(value, App):
                value.close_sync()


def pages_modules(folder: Path) -> list[ModuleType]:
    """Also packages without a file of their own."""
    return [one for one in sys.modules.values() if _is_below(folder, one)]


def _is_below(folder: Path, module: ModuleType) -> bool:
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    return any(str(place).startswith(str(folder)) for place in places)


def keep_file(block: Block, folder: Path) -> None:
    """A file of the page's: written where it says, and imported, as the command line would."""
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")
    name = block.file.removesuffix(".py").replace("/", ".")
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    importlib.import_module(name)


def run(block: Block, namespace: dict[str, object]) -> str:
    """What it prints. A part of a program may await where it stands."""
    source = block.first + "\n" * max(0, block.line - block.first.count("\n")) + block.text
    code = compile(source, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    module = ModuleType(str(namespace["__name__"]))
    namespace.setdefault("__builtins__", __builtins__)
    sys.modules.setdefault(module.__name__, module)
    output = io.StringIO()
    with redirect_stdout(output):
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(_awaited(code, namespace))
        else:
            exec(code, namespace)
    return output.getvalue()


async def _awaited(code: object, namespace: dict[str, object]) -> None:
    """What a hidden beginning opened on its `stack` is closed at the end."""
    try:
        await eval(code, namespace)  # type: ignore[arg-type]
    finally:
        if isinstance(stack := namespace.get("stack"), AsyncExitStack):
            await stack.aclose()


def command_lines(page: Path) -> list[tuple[str, str]]:
    """(place, command line) of every `veredus ...` in a shell block; continued lines are put together."""
    found = []
    for block in blocks(page):
        if block.language in SHELL:
            text = block.text.replace("\\\n", " ")
            for line in text.splitlines():
                plain = line.removeprefix("$ ").strip()
                if plain.startswith("veredus "):
                    found.append((block.place, plain))
    return found


LINES = [one for page in PAGES for one in command_lines(page)]


@pytest.mark.parametrize(("place", "line"), LINES, ids=[f"{place}-{line}" for place, line in LINES])
def test_command_line(place: str, line: str) -> None:
    accept(shlex.split(re.split(r"\s[|>&]", line)[0], comments=True)[1:])


def test_every_block_is_run_or_says_why_not() -> None:
    """Blocks of Go are run by tests/interop/live/test_docs.py."""
    silent = [
        block.place
        for page in PAGES
        for block in blocks(page)
        if block.language not in NO_PROGRAMS | SHELL | {"python", "go"} and not block.not_run
    ]
    assert silent == []


def test_pages_with_tests_of_their_own_have_them() -> None:
    for page, (place, _) in ELSEWHERE.items():
        assert (ROOT / page).exists(), page
        assert (ROOT / place).exists(), place
        tests = [ROOT / place] if place.endswith(".py") else list((ROOT / place).rglob("test_*.py"))
        assert any(Path(page).name in test.read_text(encoding="utf-8") for test in tests), page


def test_shell_blocks_hold_only_what_can_be_checked() -> None:
    """A line of a shell block is a command of ours, of pip, make, python, curl, uvicorn or cd, or what one printed."""
    known = (
        "veredus",
        "pip",
        "make",
        "python",
        "export",
        "cd",
        "curl",
        "uvicorn",
        "celery",
        "rq",
        "arq",
        "npm",
        "node",
    )
    for page in PAGES:
        for block in blocks(page):
            if block.language in SHELL and not block.not_run:
                for line in block.text.splitlines():
                    if line.startswith("$ "):
                        assert line[2:].split()[0] in known, f"{block.place}: {line}"
