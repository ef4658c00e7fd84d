"""The first example in docs/options.md prints what it should; `tests/docs` runs the others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.servers import VALKEY_ONLY, RealServer
from veredus.model.options import NAMES

TEXT = (Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8")


@VALKEY_ONLY
def test_the_example_runs(server: RealServer) -> None:
    example, *_ = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    environment = {**os.environ, "VEREDUS_REDIS_URL": server.url}
    ended = subprocess.run(
        [sys.executable, "-c", example], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.splitlines() == [
        "True False",
        "task id 'nightly' exists already in queue 'reports'",
        "True",
    ]


def test_every_option_is_listed() -> None:
    listed = {name for row in re.findall(r"^\| (`.+?) \|", TEXT, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert set(NAMES) - {"order_key", "order_hold", "limit_key"} <= listed
