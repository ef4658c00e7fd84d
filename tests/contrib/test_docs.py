"""The page about frameworks: its files, written out and used as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import RealServer

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"

FASTAPI = """
import asyncio, httpx, web
async def main():
    async with web.web.router.lifespan_context(web.web):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(web.web), base_url="http://test") as client:
            assert (await client.post("/users/1")).json()["task"]
            assert (await client.get("/stats")).json()[0]["pending"] == 1
asyncio.run(main())
"""
DJANGO = """
import django; django.setup()
import use, views
from django.core.management import call_command
views.save("name")
while not use.later.is_finished:  # it is due a moment later
    call_command("veredus_worker", "--burst")
    use.later.refresh()
use.result.refresh()
print("DJANGO", use.result.return_value, use.later.status)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(files) == PAGE.read_text().count("```python"), "a block has no name"
    for name, text in files:
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_files_on_the_page_work(folder: Path, valkey_server: RealServer) -> None:
    environment = {**os.environ, "VEREDUS_REDIS_URL": valkey_server.url, "DJANGO_SETTINGS_MODULE": "settings"}
    for program, expected in ((FASTAPI, ""), (DJANGO, "DJANGO welcome, 42 SUCCESSFUL")):
        ended = subprocess.run(
            [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert expected in ended.stdout
        valkey_server.flush()
