"""The two READMEs say the same, and the first screen has what it must have."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT, blocks

ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"


def shape(text: str) -> list[str]:
    """Headings by level, links and pictures by target, rows of tables: whatever has no language."""
    plain = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+(?= )|(?<=\]\()(?!README)[^)\s]+(?=\))|^\|(?=.)", plain, re.MULTILINE)


def test_both_have_the_same_shape() -> None:
    assert shape(ENGLISH.read_text(encoding="utf-8")) == shape(CHINESE.read_text(encoding="utf-8"))


def test_both_have_the_same_code() -> None:
    english, chinese = blocks(ENGLISH), blocks(CHINESE)
    assert [(block.language, block.text) for block in english] == [(block.language, block.text) for block in chinese]


def test_both_name_the_same_things() -> None:
    names = [
        set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)))
        for page in (ENGLISH, CHINESE)
    ]
    assert names[0] <= names[1] | {"-9"}


def test_the_first_screen_shows_it_working() -> None:
    first = "\n".join(ENGLISH.read_text(encoding="utf-8").splitlines()[:45])
    for shown in ("pip install", "@app.task", "veredus worker", "sent to 42", "docs/images/bench.svg"):
        assert shown in first
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", ENGLISH.read_text(encoding="utf-8")):
        assert (ROOT / picture).exists(), picture
