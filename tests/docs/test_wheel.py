"""The built wheel in an empty environment of every Python: the first page, word for word. On one of them also the code
of every migration guide.

It installs with pip, so it needs an index of packages: `make docs-check` runs it, `make test` does not.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.matrix.pythons import claimed, find

import veredus
from tests.docs.blocks import ROOT, Block, blocks
from tests.support.processes import running
from tests.support.waiting import PATIENCE

pytestmark = [
    pytest.mark.skipif(not os.environ.get("VEREDUS_TEST_WHEEL"), reason="make docs-check runs it"),
    pytest.mark.timeout(1200),  # the first test of an environment installs it
]

GUIDES = sorted((ROOT / "docs/migrating").glob("*.md"))
TIMEOUT = 300
OWN = "{}.{}".format(*sys.version_info)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=TIMEOUT)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module", params=claimed(ROOT))
def environment(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Nothing in it but what the page says, with data of its own; the embedded server is stopped at the end."""
    python = find(request.param)
    if python is None:
        pytest.skip(f"no Python {request.param} is installed here: the wheel was NOT TESTED with it")
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True, timeout=TIMEOUT)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VEREDUS_", "PYTHON", "REDIS_"))}
    path = f"{folder}/venv/bin{os.pathsep}{os.environ['PATH']}"
    variables = kept | {"PATH": path, "VEREDUS_DATA": str(folder / "data"), "VIRTUAL_ENV": str(folder / "venv")}
    (install,) = [line for line in lines(first_page()) if line.startswith("pip install")]
    words = [str(wheel) + word.removeprefix("veredus") if "veredus" in word else word for word in shlex.split(install)]
    subprocess.run([*words, "--quiet"], env=variables, check=True, timeout=TIMEOUT)
    yield variables
    subprocess.run(["veredus", "redis", "stop"], env=variables, check=False, capture_output=True, timeout=60)


def first_page() -> list[Block]:
    return blocks(ROOT / "docs/index.md")


def lines(page: list[Block]) -> list[str]:
    shown = [block for block in page if block.language == "console" and not block.not_run]
    return [line.removeprefix("$ ") for block in shown for line in block.text.splitlines()]


def test_the_first_page_word_for_word(environment: dict[str, str], tmp_path: Path) -> None:
    (program,) = [block for block in first_page() if block.language == "python"]
    (tmp_path / program.file).write_text(program.text)
    worker, send = [shlex.split(line) for line in lines(first_page()) if not line.startswith("pip")]
    log = tmp_path / "worker.log"
    with (
        log.open("wb") as output,
        running(worker, cwd=tmp_path, env=environment, stdout=output, stderr=subprocess.STDOUT) as started,
    ):
        sent = subprocess.run(send, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert (sent.returncode, sent.stdout) == (0, "sent to Ada\n"), sent.stderr + log.read_text()
        started.send_signal(signal.SIGINT)
        assert started.wait(timeout=PATIENCE) == 0
    assert "welcome Ada" in log.read_text()


@pytest.mark.parametrize("environment", [OWN], indirect=True)
@pytest.mark.parametrize("guide", GUIDES, ids=[guide.stem for guide in GUIDES])
def test_a_migration_guide(guide: Path, environment: dict[str, str], tmp_path: Path) -> None:
    printed = ""
    for block in blocks(guide):
        if block.comment == "prints":
            assert printed.rstrip() == block.text.rstrip()
        elif block.language == "python" and not block.not_run:
            path = tmp_path / (block.file or "program.py")
            path.write_text(block.text)
            if not block.file:
                ended = subprocess.run(
                    ["python", path.name], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
                )
                assert ended.returncode == 0, ended.stderr
                printed = ended.stdout
    assert printed


def test_the_wheel_holds_no_more_and_no_less(wheel: Path) -> None:
    import zipfile

    names = set(zipfile.ZipFile(wheel).namelist())
    packed = {name.removeprefix("veredus/") for name in names if name.startswith("veredus/")}
    source = ROOT / "src/veredus"
    there = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and not {"__pycache__", "js"} & set(path.relative_to(source).parts)
    }
    there |= {f"js/{name}" for name in ("veredus.js", "veredus.d.ts")}
    assert there == packed
    assert all(re.match(r"veredus(-[\d.]+\.dist-info)?/", name) for name in names)


def test_the_javascript_client_is_where_the_docs_say(environment: dict[str, str]) -> None:
    program = "from importlib.resources import files; print((files('veredus') / 'js/veredus.js').read_text())"
    ended = subprocess.run(["python", "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert ended.stdout.rstrip() == (ROOT / "clients/js/veredus.js").read_text(encoding="utf-8").rstrip()


def test_it_starts_quickly(environment: dict[str, str]) -> None:
    begun = time.monotonic()
    ended = subprocess.run(["veredus", "--version"], env=environment, check=True, capture_output=True, timeout=60)
    assert veredus.__version__.encode() in ended.stdout
    assert time.monotonic() - begun < 10
