"""The example in docs/gateway-log.md runs as it stands and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.servers import VALKEY_ONLY, RealServer

DOCS = Path(__file__).parents[2] / "docs" / "gateway-log.md"


@VALKEY_ONLY
def test_the_example_runs(server: RealServer, tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)[0]
    (tmp_path / "example.py").write_text(example)
    ended = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env={**os.environ, "VEREDUS_REDIS_URL": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    promised = re.findall(r"asyncio\.run\(main\(\)\)  # (.*)", example)[0]
    assert ended.stdout.strip() == promised


def test_every_script_is_named() -> None:
    text = DOCS.read_text()
    for room in ("session", "outbox", "node"):
        named = re.findall(rf"lua/{room}/\{{(.*?)\}}\.lua", text)[0].split(",")
        files = (DOCS.parents[1] / "src" / "veredus" / "lua" / room).glob("*.lua")
        assert sorted(named) == sorted(path.stem for path in files)
