"""What we write: the golden calls made through our API leave what Asynq left, but for the rows of the table."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.interop.differences import expected
from tests.interop.go_peer import GoPeer
from tests.interop.golden import differences, picture, take
from tests.interop.replay import SENT_ONLY, WORKED, Replay
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import Worker


@pytest.mark.parametrize("name", SENT_ONLY)
async def test_sent_tasks_look_like_asynqs(name: str, url: str, redis_client: Any) -> None:
    replay = Replay(name, url, redis_client)
    assert differences(expected(name), picture(await replay.play(), replay.run)) == []


@pytest.mark.parametrize("name", WORKED)
async def test_worked_tasks_look_like_asynqs(name: str, url: str, redis_client: Any) -> None:
    replay = Replay(name, url, redis_client)
    assert differences(expected(name), picture(await replay.play(), replay.run)) == []


@VALKEY_ONLY
async def test_a_running_task_and_its_worker_look_like_asynqs(url: str, redis_client: Any) -> None:
    """Three moments of one run: before the beat, after it, and after the task is done."""
    replay = Replay("active", url, redis_client)
    goal = asyncio.Event()
    try:
        first = await replay.play_active_first(goal)
        await until(lambda: redis_client.keys("asynq:workers:{*"), what="the next beat")
        second = await take(redis_client)
        goal.set()
        await until(lambda: _no_keys(redis_client, "asynq:workers:{*"), what="the beat after the end")
        third = await take(redis_client)
    finally:
        goal.set()
        await replay.close()
    assert differences(expected("active-first"), picture(first, replay.run)) == []
    assert differences(expected("active"), picture(second, replay.run)) == []
    assert differences(expected("active-done"), picture(third, replay.run)) == []


@VALKEY_ONLY
async def test_a_killed_worker_and_the_recovery_look_like_asynqs(url: str, redis_client: Any) -> None:
    replay = Replay("server-killed", url, redis_client)
    await replay.enqueue(replay.golden["inputs"][0])
    victim = start_victim(url, lease=12.0)
    try:
        await until(lambda: redis_client.keys("asynq:workers:{*"), what="the beat that shows the task")
    finally:
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
    await until(lambda: _nobody_listens(redis_client), what="the end of the connections")
    killed = await take(redis_client)
    assert differences(expected("server-killed"), picture(killed, replay.run)) == []

    # The rest of the lease passes at once: the score and our own field of it go back together.
    task_id = replay.run.sent[0].id
    past = int(killed.captured) - 1
    await redis_client.zadd("asynq:{default}:lease", {task_id: past})
    task = f"asynq:{{default}}:t:{task_id}"
    owner = (await redis_client.hget(task, "held")).rpartition(b":")[0]
    await redis_client.hset(task, "held", b"%s:%d" % (owner, past))
    await redis_client.delete("asynq:servers", "asynq:workers", *await redis_client.keys("asynq:*:{*:*:*}"))
    replay.run.retry_delay = (0, 0)
    # It recovers every queue, but does not serve this one, so that the task stays where the recovery put it.
    worker: Worker = replay.app.worker({"elsewhere": 1}, concurrency=10, lease=1.0, sweep=0.2)
    async with worker:
        await until(lambda: replay.in_state("default", task_id, b"retry"), what="the recovery")
        await until(replay.beaten, what="the beat")
        recovered = await take(redis_client)
    await replay.app.close()
    golden = expected("server-killed-recovered")
    seen = picture(recovered, replay.run)
    registered = ("asynq:queues", "members")
    assert seen[registered] == golden[registered] | {"elsewhere"}
    for view in (golden, seen):  # the second worker served another queue and beats faster, see above
        for path in list(view):
            if path[-1] == "queues" or path in (("channels",), registered):
                del view[path]
    assert differences(golden, seen) == []


def start_victim(url: str, *, lease: float) -> subprocess.Popen[bytes]:
    """A worker process for the golden handlers, to be killed."""
    code = (
        "import sys; from tests.interop.replay import golden_app\n"
        "sys.exit(golden_app(sys.argv[1]).worker({'default': 1}, concurrency=10, lease=float(sys.argv[2])).run())"
    )
    return subprocess.Popen([sys.executable, "-c", code, url, str(lease)], stdin=subprocess.DEVNULL)


async def _no_keys(client: Any, pattern: str) -> bool:
    return not await client.keys(pattern)


async def _nobody_listens(client: Any) -> bool:
    return await GoPeer(client).listeners() == 0
