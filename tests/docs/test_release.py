"""A release: one version everywhere, a dated entry in the changelog, and archives that hold what they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from datetime import date
from pathlib import Path

import pytest

import veredus
from tests.docs.blocks import ROOT

CLIENT = ROOT / "clients/js"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def build(source: Path, target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=100)
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def source_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(source_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(source_archive) as archive:
        archive.extractall(folder, filter="data")
    (found,) = folder.iterdir()
    return found


def test_every_place_names_the_same_version() -> None:
    script = (CLIENT / "veredus.js").read_text(encoding="utf-8")
    (announced,) = re.findall(r"client: 'veredus-js/([\d.]+)'", script)
    package = json.loads((CLIENT / "package.json").read_text(encoding="utf-8"))["version"]
    assert {PROJECT["version"], veredus.__version__, package, announced} == {veredus.__version__}


def test_the_changelog_has_a_dated_entry_for_the_version() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    version, _, day = headings[1].partition(" - ")
    assert version == veredus.__version__
    assert date.fromisoformat(day)


def test_every_address_of_the_project_is_a_file_of_the_source_archive(unpacked: Path) -> None:
    assert {"Documentation", "Changelog", "Security"} <= set(PROJECT["urls"])
    missing = [path for path in PROJECT["urls"].values() if not (unpacked / path).is_file()]
    assert missing == []


def test_the_wheel_is_the_same_from_the_repository_and_from_the_source_archive(unpacked: Path, tmp_path: Path) -> None:
    made = []
    for name, source in (("here", ROOT), ("there", unpacked)):
        with zipfile.ZipFile(build(source, "wheel", tmp_path / name)) as wheel:
            made.append({entry: wheel.read(entry) for entry in wheel.namelist()})
    assert made[0] == made[1]


def test_the_wheel_has_the_javascript_client(tmp_path: Path) -> None:
    with zipfile.ZipFile(build(ROOT, "wheel", tmp_path / "wheel")) as wheel:
        for name in ("veredus.js", "veredus.d.ts"):
            assert wheel.read(f"veredus/js/{name}") == (CLIENT / name).read_bytes()


def test_npm_packs_the_client_and_nothing_else(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed here: the package of clients/js was NOT TESTED")
    command = [npm, "pack", "--dry-run", "--json", "--offline", "--cache", str(tmp_path)]
    ended = subprocess.run(command, cwd=CLIENT, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    (packed,) = json.loads(ended.stdout)
    assert (packed["name"], packed["version"]) == ("veredus", veredus.__version__)
    assert {file["path"] for file in packed["files"]} == {"package.json", "README.md", "veredus.js", "veredus.d.ts"}
