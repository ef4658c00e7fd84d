"""The program in docs/peers.md runs and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.servers import RealServer

PAGE = Path(__file__).parent.parent.parent / "docs/peers.md"


def test_the_first_program_prints_what_it_says(valkey_server: RealServer) -> None:
    text = PAGE.read_text()
    program, printed = re.findall(r"```(?:python|text)\n(.*?)```", text, re.DOTALL)[:2]
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"VEREDUS_REDIS_URL": valkey_server.url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (0, printed), ended.stderr
