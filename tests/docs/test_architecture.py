"""ARCHITECTURE.md names files that exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT

PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", PAGE)))


def test_the_page_names_files() -> None:
    assert len(NAMES) > 80


@pytest.mark.parametrize("name", NAMES)
def test_a_named_file_exists(name: str) -> None:
    assert any((base / name).exists() for base in (ROOT / "src/veredus", ROOT)), f"ARCHITECTURE.md names {name}"
