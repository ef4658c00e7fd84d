"""Every example in docs/dashboard.md is an app that serves the dashboard; every address in its tables is one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import RealServer
from veredus.dashboard.dashboard import CHANGES, READINGS

GUIDE = Path(__file__).parent.parent.parent / "docs" / "dashboard.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
ASK = """
import asyncio, httpx

async def ask():
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://dash.test") as client:
        page = await client.get("/veredus/")
        refused = await client.get("/veredus/api/overview")
        bearer = {"authorization": "Bearer change-me-please-0123"}
        told = await client.get("/veredus/api/me", headers=bearer)
        print(page.status_code, "Veredus" in page.text, refused.status_code, told.status_code)

asyncio.run(ask())
"""


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_serves_the_dashboard(number: int, valkey_server: RealServer, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[number] + ASK)
    environment = {"VEREDUS_REDIS_URL": valkey_server.url, "PATH": ""}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "200 True 401 200\n", done.stderr


def test_every_address_is_described() -> None:
    text = GUIDE.read_text()
    assert len(EXAMPLES) == 4
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| `api/"))
    cells = set(re.findall(r"`(?:api/)?([a-z/-]+)`", rows))
    missing = [name for name in [*READINGS, "me", "live"] if f"`api/{name}`" not in rows]
    missing += [name for name in CHANGES if name not in cells and name.split("/")[-1] not in cells]
    assert missing == []
