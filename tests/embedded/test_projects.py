"""Each project has an embedded server of its own: which folder that is, and what commands say about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from veredus import App
from veredus.embedded import settings


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("VEREDUS_REDIS_URL", "REDIS_URL", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def _project(folder: Path, mark: str = "pyproject.toml") -> Path:
    (folder / "src" / "deep").mkdir(parents=True)
    (folder / mark).mkdir() if mark == ".git" else (folder / mark).touch()
    return folder


def test_two_projects_have_two_folders_and_a_project_has_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = settings.data_path(None)
    found: dict[str, set[Path]] = {}
    for name, mark in (("shop", "pyproject.toml"), ("blog", ".git"), ("work/shop", "pyproject.toml")):
        project = _project(home / name, mark)
        for folder in (project, project / "src" / "deep"):
            monkeypatch.chdir(folder)
            found.setdefault(name, set()).add(settings.data_path(None))
    assert [len(paths) for paths in found.values()] == [1, 1, 1]
    paths = [next(iter(one)) for one in found.values()]
    assert len({shared, *paths}) == 4
    assert all(path.parent == shared / "projects" for path in paths)
    assert paths[0].name.startswith("shop-")
    monkeypatch.setenv("VEREDUS_DATA", str(home / "mine"))
    assert settings.data_path(None) == home / "mine"


def test_an_app_stays_with_the_project_in_which_it_began(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = _project(home / "shop")
    monkeypatch.chdir(project)
    monkeypatch.setenv("VEREDUS_REDIS_URL", "")
    assert App().server.describe() == (
        f"embedded, data in {settings.short(settings.data_path(None))} (of the project ~/shop)"
    )
    monkeypatch.chdir(home)
    assert "project" not in App().server.describe()
    monkeypatch.setenv("REDIS_URL", "redis://user:secret@cache:7000/1")
    assert App().server.describe() == "redis://cache:7000/1 (REDIS_URL)"
    assert App("redis://other").server.describe() == "redis://other:6379/0"


def test_the_first_line_of_a_command_says_which_server_it_uses_and_json_stays_clean(home: Path) -> None:
    environment = {**os.environ, "HOME": str(home), "VEREDUS_REDIS_URL": "redis://127.0.0.1:1/3"}
    words = [sys.executable, "-m", "veredus", "stats", "--json"]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 3
    assert ended.stdout == ""
    assert ended.stderr.splitlines()[0] == "server: redis://127.0.0.1:1/3"
