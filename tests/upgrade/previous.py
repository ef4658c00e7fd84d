"""The version before this one: built from the history of the repository, with the dependencies of .venv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COMMIT = "a52f677d5353afa9a1ee0b8252ea27169f0c9109"
"""The last commit of the previous version. A release moves it to its own last commit."""
HISTORY = Path(os.environ.get("VEREDUS_TEST_HISTORY") or Path(__file__).parents[2])
"""The clone that has it: this one, unless this is a copy without a history."""


class NoHistory(Exception):
    """The previous version cannot be built here; the text says what was therefore not tested."""


def install(cache: Path) -> Path:
    """A folder for PYTHONPATH with the previous version and nothing else; built once, without network."""
    site = cache / f"veredus-{COMMIT[:12]}"
    if not site.exists():
        _check()
        with tempfile.TemporaryDirectory(dir=cache) as made:
            _build(Path(made))
            try:
                os.rename(Path(made, "site"), site)
            except OSError:
                if not site.exists():  # else another test process was faster
                    raise
    return site


def _check() -> None:
    if shutil.which("git") is None:
        raise NoHistory("git is not installed: upgrades from the previous version were NOT TESTED")
    found = subprocess.run(["git", "cat-file", "-e", f"{COMMIT}^{{commit}}"], cwd=HISTORY, capture_output=True)
    if found.returncode:
        raise NoHistory(f"commit {COMMIT[:12]} is not in this clone (shallow?): upgrades from it were NOT TESTED")


def _build(folder: Path) -> None:
    source = folder / "source"
    source.mkdir()
    archive = subprocess.run(
        ["git", "archive", COMMIT, "src", "pyproject.toml", "README.md", "LICENSE"],
        cwd=HISTORY,
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder / "site"), str(source)]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, f"pip could not build {COMMIT}: {done.stderr[-2000:]}"
