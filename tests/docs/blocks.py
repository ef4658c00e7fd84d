"""The blocks of code in a page, and what the comments before them say.

An HTML comment before a block, which readers do not see:

    <!-- not run: why -->      the block is only looked at (Python: compiled)
    <!-- goes on -->           it belongs to the program of the block before
    <!-- prints -->            it is what the program before prints
    <!-- first                 code that stands before the block's own, where a page shows only a part
    ... -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])

_BLOCK = re.compile(
    r"(?:^<!--(?P<comment>(?:(?!-->).)*)-->\n+)?^(?P<fence>`{3,})(?P<language>[\w+-]*)[^\n]*\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    comment: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str:
        """The name that its first line gives it: `# shop.py`."""
        found = re.match(r"# ([\w/]+\.py)\n", self.text)
        return found[1] if found else ""

    @property
    def not_run(self) -> str:
        return self.comment.removeprefix("not run:").strip() if self.comment.startswith("not run:") else ""

    @property
    def first(self) -> str:
        return self.comment.removeprefix("first") if self.comment.startswith("first") else ""


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start("fence")) + 1,
            match["language"],
            match["text"],
            (match["comment"] or "").strip(),
        )
        for match in _BLOCK.finditer(text)
    ]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()
