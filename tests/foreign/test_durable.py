"""What a durable task has kept, damaged: it alone is archived with the reason, and no role stops for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.foreign.support import FAST
from tests.integration.support import Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, current
from veredus.store.store import Store
from veredus.store.tasks.runs import JoinRow
from veredus.wire import keys

pytestmark = VALKEY_ONLY
HUGE = b"9223372036854775807"
RECORDS = {
    "no numbers": b"x y []",
    "no list": b"2 0a {}",
    "one row without a number": b'2 0a [["default"]]',
    "more than anybody has": HUGE + b' 0a [["default", ' + HUGE + b", true]]",
    "fewer rows than children": b'2 0a [["default", 1, true]]',
    "nothing": b"",
}


@pytest.fixture
def look(redis_client: Any) -> Look:
    return Look(redis_client)


def _declare(app: App) -> None:
    @app.task(name="child", retention=600)
    async def child() -> int:
        return 1

    @app.task(name="parent")
    async def parent() -> list[int]:
        return await current().gather("both", [child.using(queue="elsewhere").call() for _ in range(2)])


async def _waiting(app: App, look: Look) -> None:
    """A parent whose children nobody runs."""
    async with app.worker(**FAST):
        await app.tasks["parent"].using(task_id="p").enqueue()
        await until(lambda: look.client.zscore(keys.waits("default"), "p"))


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS.keys())
async def test_a_task_whose_children_are_not_known_is_archived_with_the_reason(
    url: str, look: Look, record: bytes
) -> None:
    async with App(url) as app:
        _declare(app)
        await _waiting(app, look)
        await look.client.hset(look.task("p"), "g:both", record)
        await look.client.zadd(keys.waits("default"), {"p": 1})
        async with app.worker(**FAST) as worker:
            message = await look.ends("p", "archived")
            assert worker.signs.restarts == {}
        assert message is not None
        assert message.error_msg.startswith("DamagedRun: ")
        assert "fan-out" in message.error_msg
        run = await app.inspector().durable_run("default", "p")
        assert run is not None
        assert [step.outcome for step in run.steps] == ["damaged"]


@pytest.mark.parametrize(
    "record",
    [b"", b"\xff", b"null", b"[]", b'["archive"]', b'["retry", []]', b'["archive", [["both", "x"]]]', b"[" * 9999],
)
async def test_a_damaged_record_of_cancelled_children_is_removed_and_holds_up_no_other(
    url: str, look: Look, record: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(url) as app:
        _declare(app)
        await _waiting(app, look)
        (child, _) = await look.of("elsewhere").pending()
        mark, fan_out = await look.client.hmget(look.task("p"), "run", "g:both")
        await look.client.delete(look.task("p"))
        good = json.dumps(["delete", [["both", fan_out.decode()]]])
        await look.client.hset(keys.orphans("default"), mapping={b"a bad": record, b"p " + mark: good})
        await look.client.zadd(keys.waits("default"), {"p": 1})
        async with app.worker(**FAST) as worker:
            await look.of("elsewhere").ends(child, "gone")

            async def is_worked_off() -> bool:
                return not await look.client.exists(keys.orphans("default"))

            await until(is_worked_off)
            assert worker.signs.restarts == {}
    assert caplog.text.count("children of task a of queue default may go on") == 1


async def test_a_cancel_works_beside_a_key_of_another_type(url: str, look: Look) -> None:
    """What the key should have is asked for only if the task has children."""
    async with App(url) as app:
        _declare(app)
        await look.client.set(keys.orphans("default"), "no hash")
        handle = await app.enqueue("child")
        assert await handle.cancel() == "cancelled"
        assert await app.inspector().cancel("default", (await app.enqueue("child")).id) == "cancelled"


async def test_a_number_of_children_that_nobody_has_holds_up_no_server(
    store: Store, url: str, look: Look, redis_client: Any
) -> None:
    async with App(url) as app:
        _declare(app)
        await _waiting(app, look)
        (mark,) = await redis_client.hmget(look.task("p"), "run")
        followed = {"g:both": HUGE + b" 0a []", "waited": "a-follower"}  # who sees how many have ended
        await redis_client.hset(look.task("p"), mapping=followed)
        assert await store.runs.join("default", [JoinRow("p", mark.decode(), "both", 0, b"+")]) == 0
