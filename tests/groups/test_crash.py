"""kill -9 at every step of an aggregation: the set comes back after its time, each member is in exactly one summary."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.keyspace import check_invariant
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import PATIENCE, pause, until
from veredus import App
from veredus.wire import keys

pytestmark = [VALKEY_ONLY, pytest.mark.crash]


class Workers:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self._url = folder, url
        self._running: list[subprocess.Popen[bytes]] = []
        shutil.copy(Path(__file__).parent / "shop.py", folder / "shop.py")

    def start(self, point: str = "", when: str = "") -> subprocess.Popen[bytes]:
        with (self.folder / f"log.{len(self._running)}").open("wb") as log:
            command = [sys.executable, "shop.py", self._url, point, when]
            self._running.append(subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log))
        return self._running[-1]

    def summaries(self) -> list[list[int]]:
        facts = self.folder / "facts"
        return [list(map(int, line.split())) for line in facts.read_text().splitlines()] if facts.exists() else []

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("log.*")))

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def workers(tmp_path: Path, url: str) -> Iterator[Workers]:
    workers = Workers(tmp_path, url)
    with contextlib.closing(workers):
        yield workers


@pytest.mark.parametrize(
    ("point", "when", "staged"),
    [
        ("check", "before", 0),
        ("check", "after", 1),
        ("read", "after", 1),
        ("aggregate", "before", 1),
        ("aggregate", "after", 0),
    ],
)
async def test_a_worker_killed_while_it_aggregates(
    app: App, workers: Workers, redis_client: Any, point: str, when: str, staged: int
) -> None:
    await app.enqueue_many(_calls(app, 4))
    victim = workers.start(point, when)
    assert await asyncio.to_thread(victim.wait, PATIENCE) == -9, workers.log()
    assert await redis_client.zcard(keys.aggregation_sets("default")) == staged
    assert await check_invariant(redis_client) == []
    workers.start()
    await until(lambda: workers.summaries())
    await pause(0.5, proves="no member is summed up twice")
    assert workers.summaries() == [[0, 1, 2, 3]], workers.log()
    assert await redis_client.keys("asynq:{default}:[ga]*") == await redis_client.keys("asynq:{default}:t:*") == []


async def test_workers_killed_again_and_again(app: App, workers: Workers, redis_client: Any) -> None:
    total = 120
    await app.enqueue_many(_calls(app, total))
    for point, when in [("aggregate", "after"), ("read", "after"), ("aggregate", "before"), ("check", "after")]:
        victim = workers.start(point, when)
        await asyncio.to_thread(victim.wait, PATIENCE)
        assert await check_invariant(redis_client) == []
    workers.start()

    def summed() -> bool:
        return sum(len(row) for row in workers.summaries()) >= total

    await until(summed)
    await pause(0.5, proves="no member is summed up twice")
    assert sorted(n for row in workers.summaries() for n in row) == list(range(total)), workers.log()


def _calls(app: App, count: int) -> Any:
    from veredus import Call

    for n in range(count):
        yield Call("item", str(n).encode(), app._defaults.merged({"group": f"g{n // 24}"}))
