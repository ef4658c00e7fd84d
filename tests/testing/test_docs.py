"""The page about testing: its files, written out and run by pytest as a user would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_every_file_on_the_page_runs(tmp_path: Path) -> None:
    files = re.findall(r"```(?:python|ini)\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(files) == len(re.findall(r"^```(?:python|ini)$", PAGE.read_text(), re.MULTILINE)), "a block has no name"
    for name, text in files:
        (tmp_path / name).write_text(text)
    (tmp_path / "conftest.py").write_text(
        "import pytest, shop\n\n@pytest.fixture(autouse=True)\ndef clean():\n    shop.outbox.clear()\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "11 passed" in ended.stdout
