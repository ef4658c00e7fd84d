"""The page on order and limits, and the two examples, run as they stand and show what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.servers import VALKEY_ONLY, RealServer

ROOT = Path(__file__).parents[2]


def run(program: Path, url: str) -> str:
    ended = subprocess.run(
        [sys.executable, program.name],
        cwd=program.parent,
        env={**os.environ, "VEREDUS_REDIS_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stdout.strip()


@VALKEY_ONLY
def test_the_page(server: RealServer, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "order-and-limits.md").read_text()
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "example.py").write_text(example)
    promised = re.findall(r"asyncio\.run\(main\(\)\)  # (.*)", example)[0]
    assert run(tmp_path / "example.py", server.url) == promised.replace(", ", "\n")


@VALKEY_ONLY
def test_the_examples(server: RealServer) -> None:
    shown = run(ROOT / "examples" / "order_per_key.py", server.url)
    assert shown.splitlines() == [f"{name} [1, 2, 3, 4, 5]" for name in ("ann", "bob", "eve")]
    shown = run(ROOT / "examples" / "limits.py", server.url)
    assert re.fullmatch(r"60 mails in 1\.\d s\n" + "\n".join(f"{h}.example: at most 2 at once" for h in "abc"), shown)
