"""The steps of the Dockerfile without Docker: each stage is a folder, each RUN a shell with the paths of that folder.

It installs with pip, so it needs an index of packages: `make docs-check` runs it, `make test` does not.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.deploy.files import ROOT, Stage, stages
from tests.docs.blocks import blocks
from tests.support.processes import running
from tests.support.servers import RealServer, free_port
from tests.support.waiting import PATIENCE, until_sync

pytestmark = [
    pytest.mark.skipif(not os.environ.get("VEREDUS_TEST_WHEEL"), reason="make docs-check runs it"),
    pytest.mark.timeout(1200),  # the first test of an environment installs it
]

TIMEOUT = 600
ABSOLUTE = re.compile(r"(?<![\w.:/-])/(?=(?:src|opt|app)\b)")


class Image:
    """What the steps made so far: a folder that stands for `/`, and what ENV and WORKDIR said."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root
        self.variables: dict[str, str] = {}

    def inside(self, text: str) -> str:
        """Paths of the image, as paths of this machine."""
        return ABSOLUTE.sub(f"{self.root}/", text)

    def build(self, stage: Stage, earlier: dict[str, Image]) -> None:
        for instruction, text in stage.steps:
            if instruction == "WORKDIR":
                self.folder = Path(self.inside(text))
                self.folder.mkdir(parents=True)
            elif instruction == "ENV":
                name, _, value = text.partition("=")
                self.variables[name] = self.inside(value).replace("$PATH", os.environ["PATH"])
            elif instruction == "COPY":
                self._copy(text, earlier)
            elif instruction == "RUN":
                self._run(text)
            else:
                assert instruction in ("USER", "STOPSIGNAL", "EXPOSE", "ENTRYPOINT", "CMD"), instruction

    def _copy(self, text: str, earlier: dict[str, Image]) -> None:
        words = text.split()
        origin = earlier[words.pop(0).removeprefix("--from=")].root if words[0].startswith("--from=") else ROOT
        *sources, target = words
        for source in sources:
            found = origin / source.lstrip("/")
            place = Path(self.inside(target)) if target.startswith("/") else self.folder / target
            if found.is_dir():
                shutil.copytree(found, place, dirs_exist_ok=True, symlinks=True)
            else:
                shutil.copy(found, place / found.name if target.endswith("/") else place)

    def _run(self, text: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("VEREDUS_", "PYTHON"))}
        command = self.inside(text).replace("python -m venv", f"{sys.executable} -m venv")
        subprocess.run(command, shell=True, cwd=self.folder, env=kept | self.variables, check=True, timeout=TIMEOUT)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """All stages have one folder for `/`, one after the other, so that a copied environment finds its own path."""
    folder = tmp_path_factory.mktemp("image")
    made: dict[str, Image] = {}
    for stage in stages():
        if (folder / "root").exists():
            (folder / "root").rename(folder / "earlier")
            made["build"].root = folder / "earlier"
        (folder / "root").mkdir()
        built = made[stage.name] = Image(folder / "root")
        built.build(stage, made)
    shutil.rmtree(folder / "earlier")
    return made[""]


def test_the_command_of_the_image_runs_a_worker_and_stops_at_sigterm(
    image: Image, valkey_server: RealServer, tmp_path: Path
) -> None:
    stage, port, log = stages()[-1], str(free_port()), tmp_path / "log"
    words = [word.replace("9090", port) for word in stage.words("ENTRYPOINT") + stage.words("CMD")]
    program = shutil.which(words[0], path=image.variables["PATH"])
    assert program == str(image.root / "opt/venv/bin/veredus")
    kept = {"HOME": str(tmp_path / "no-such-home"), "VEREDUS_REDIS_URL": valkey_server.url}
    with (
        log.open("wb") as output,
        running(
            [program, *words[1:]],
            cwd=image.folder,
            env=kept | image.variables,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):

        def ready() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                    return bool(answer.status == 200)
            except (urllib.error.URLError, TimeoutError):
                return False

        until_sync(ready, what="a ready worker")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) == 0, log.read_text()


def test_without_a_url_the_image_refuses_to_start(image: Image) -> None:
    command = [str(image.root / "opt/venv/bin/veredus"), *stages()[-1].words("CMD")]
    ended = subprocess.run(command, cwd=image.folder, env=image.variables, capture_output=True, text=True, timeout=60)
    assert ended.returncode not in (0, None)
    assert "VEREDUS_REDIS_URL" in ended.stderr


def test_the_javascript_client_is_served_from_the_installed_package(image: Image) -> None:
    (program,) = [
        block.text
        for block in blocks(ROOT / "docs/peers.md")
        if block.language == "python" and "StaticFiles" in block.text
    ]
    program += '\nprint(web.routes[0].app.lookup_path("veredus.js")[0])\n'
    command = [str(image.root / "opt/venv/bin/python"), "-c", program]
    ended = subprocess.run(command, cwd=image.folder, env=image.variables, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert Path(ended.stdout.strip()).read_bytes() == (ROOT / "clients/js/veredus.js").read_bytes()


def test_any_user_can_read_it_and_has_no_reason_to_write(image: Image) -> None:
    assert (image.folder / "shop.py").is_file()
    for path in [*image.folder.rglob("*"), *(image.root / "opt").rglob("*")]:
        if not path.is_symlink():
            assert path.stat().st_mode & stat.S_IROTH, path
    left = {path.name for path in image.root.iterdir()}
    assert left == {"opt", "app"}, "the source and the constraints stay in the first stage"
