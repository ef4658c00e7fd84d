"""docs/servers.md: its example runs, its permissions are enough, its URLs can be parsed."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import FAST
from tests.support.servers import PRODUCTS, VALKEY_ONLY, RealServer, free_port
from tests.support.waiting import until
from veredus import App, AuthError, Call, Job, current
from veredus.store.connection.address import parse_url

PAGE = (Path(__file__).parents[2] / "docs" / "servers.md").read_text()


@VALKEY_ONLY
def test_the_example_runs(server: RealServer, tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0].replace("redis://localhost:6379/0", server.url)
    (tmp_path / "example.py").write_text(example)
    ended = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == re.findall(r"asyncio\.run\(main\(\)\)  # (.*)", example)[0]


def test_every_url_can_be_parsed() -> None:
    table = PAGE.partition("## URLs")[2].partition("| parameter")[0]
    urls = re.findall(r"`([a-z+-]+://[^` ]+)`", table)
    assert len(urls) >= 10
    for url in urls:
        parse_url(url)


@pytest.mark.parametrize("product", PRODUCTS)
async def test_the_permissions_are_enough(new_server: Callable[..., RealServer], product: str) -> None:
    server = new_server(port=free_port(), product=product)
    (rule,) = re.findall(r"```text\n(ACL SETUSER .*)\n```", PAGE)
    client: Any = server.client()
    client.execute_command(*shlex.split(rule.replace(">password", "'>password'")))
    app = App(f"redis://veredus:password@127.0.0.1:{server.port}/0")
    ran: list[str] = []

    @app.task(retention=60)
    async def work(n: int) -> int:
        await current().progress(0.5)
        ran.append("work")
        return n

    @app.task
    async def digest(count: int) -> None:
        ran.append("digest")

    @app.aggregate("*", grace=1, max_size=2)
    def collect(group: str, jobs: list[Job]) -> Call[None]:
        return digest.call(len(jobs))

    app.schedule("@every 1s", work.call(3))
    async with app, app.worker(janitor_interval=0.5, **FAST):
        handle = await work.using(delay=0.1, unique_for=60, headers={"a": "b"}).enqueue(2)
        assert await handle.result(10) == 2
        for n in range(2):
            await app.enqueue("item", {"n": n}, group="g")
        await until(lambda: "digest" in ran and ran.count("work") >= 2)
        later = await work.using(delay=60).enqueue(1)
        async with app.inspector() as inspector:
            assert (await inspector.stats(memory=True))[0].memory_usage > 0
            assert len(await inspector.servers()) == 1
            assert await inspector.leases() == []
            await inspector.move("default", later.id, "other")
            await inspector.delete_queue("other", force=True)
            assert [one for one in await inspector.doctor.diagnose() if one.repairable] == []
        await later.cancel()
    app.use(f"redis://veredus:wrong@127.0.0.1:{server.port}/0")
    with pytest.raises(AuthError):
        await app.enqueue("t")
    await app.close()
    await asyncio.sleep(0)
