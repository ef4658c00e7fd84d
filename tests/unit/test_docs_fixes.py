"""The pages of fixes and of an earlier gateway's defects: every file and test that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "docs" / "fixes.md").read_text(encoding="utf-8").splitlines()
ROWS = {line.split(" ")[1]: line.strip("| ").split(" | ") for line in LINES if re.match(r"\| W\d+ \|", line)}


def test_every_weakness_has_its_row_in_order() -> None:
    assert list(ROWS) == [f"W{number}" for number in range(1, 44)]
    assert all(len(cells) == 5 for cells in ROWS.values())


@pytest.mark.parametrize("number", ROWS)
def test_what_a_row_names_exists(number: str) -> None:
    _, _, says, where, tests = ROWS[number]
    assert says.startswith(("**Done", "**Kept")), "a weakness is fixed, or the row argues why not"
    files = re.findall(r"`([^`]+)`", where)
    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []
    named = re.findall(r"`([^`]+)`", tests)
    assert named
    for one in named:
        file, _, function = one.partition("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {function}\(", source, re.MULTILINE), one


def test_the_tests_of_the_gateways_defects_exist() -> None:
    page = (ROOT / "docs" / "gateway-defects.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(test_\w+?)(\.\.\.)?`", page)
    assert len(named) > 30
    missing = [
        f"{file}::{function}"
        for file, function, _ in named
        if not (path := ROOT / "tests" / file).exists() or f"def {function}" not in path.read_text(encoding="utf-8")
    ]
    assert missing == []
