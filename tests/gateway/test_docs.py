"""The programs of docs/gateway.md run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.servers import RealServer, free_port

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"


def test_the_example_runs(valkey_server: RealServer, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    shop, main, auth = blocks[:3]
    port = str(free_port())
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "main.py").write_text(main.replace("8765", port))
    (tmp_path / "auth.py").write_text(auth)
    environment = {**os.environ, "VEREDUS_REDIS_URL": valkey_server.url}
    for program in ("auth.py", "main.py"):
        ended = subprocess.run(
            [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "{'order': 42, 'pages': 3}"
    assert lines[1:4] == [f"{n} progress {{'percent': {percent}}}" for n, percent in ((1, 0), (2, 50), (3, 100))]
    assert lines[-1].endswith("greeting {'hello': 'ada'}")
