"""The Pythons that pyproject.toml claims, where they are on this machine, and an environment for each."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

CLASSIFIER = "Programming Language :: Python :: 3."


class CannotInstall(Exception):
    """An environment could not be made; the text is the end of what pip said."""


def claimed(root: Path) -> list[str]:
    """The versions among the classifiers, such as 3.11."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return ["3." + line.removeprefix(CLASSIFIER) for line in project["classifiers"] if line.startswith(CLASSIFIER)]


@cache
def find(version: str) -> str | None:
    """A program of this version that can make environments: our own, on PATH, or one of pyenv's."""
    for path in _places(version):
        command = [path, "-c", "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        except OSError:
            continue
        if answer.stdout.strip() == version:  # a shim of pyenv's may be there without a Python behind it
            return path
    return None


def environment(root: Path, version: str, say: Callable[[str], None]) -> str:
    """The program of an environment with everything in requirements/dev.txt; made once, and anew when that changes."""
    if version == "{}.{}".format(*sys.version_info) and sys.prefix != sys.base_prefix:
        return sys.executable
    folder = root / ".matrix" / f"py{version}"
    program, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = hashlib.sha256(b"".join((root / name).read_bytes() for name in ("requirements/dev.txt", "pyproject.toml")))
    if stamp.exists() and stamp.read_text() == wanted.hexdigest():
        return str(program)
    say(f"installing into {folder.relative_to(root)} (once) ...")
    pip = [str(program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [str(find(version)), "-m", "venv", "--clear", str(folder)],
        [*pip, "-r", "requirements/dev.txt"],
        [*pip, "--no-deps", "--no-build-isolation", "-e", "."],
    ):
        ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise CannotInstall(" ".join((ended.stderr or ended.stdout).strip().splitlines()[-3:]))
    stamp.write_text(wanted.hexdigest())
    return str(program)


def _places(version: str) -> Iterator[str]:
    yield getattr(sys, "_base_executable", sys.executable)
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield on_path
    for versions in _pyenv_versions():
        found = [path for path in versions.glob(f"{version}.*/bin/python{version}") if os.access(path, os.X_OK)]
        yield from map(str, sorted(found, key=_numbers, reverse=True))


def _pyenv_versions() -> Iterator[Path]:
    pyenv = shutil.which("pyenv")
    if pyenv:
        answer = subprocess.run([pyenv, "root"], capture_output=True, text=True, timeout=30, check=False)
        if answer.returncode == 0:
            yield Path(answer.stdout.strip(), "versions")
    yield Path("~/.pyenv/versions").expanduser()


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.parents[1].name)]
