"""`veredus queue order-keys|release|limits`: who waits for whom, and letting them go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cli.support import Command
from tests.support.waiting import until
from veredus import App, Limit, SkipRetry


@pytest.fixture
def held(veredus: Command) -> Command:
    """Account 7 is held up by its first task, `broken`."""

    async def fill() -> None:
        app = App(veredus.url)

        @app.task(name="book", queue="mail", order_key="account:7", order_hold=True, limit=Limit(rate="5/m"))
        async def book() -> None:
            raise SkipRetry("broken")

        async with app:
            await app.enqueue_many([book.using(task_id="broken").call(), book.using(task_id="next").call()])
            async with app.worker(concurrency=1):
                await until(lambda: _archived(app), what="the held lane")

    asyncio.run(fill())
    return veredus


async def _archived(app: App) -> Any:
    return await app.inspector().order_keys("mail", held=True)


def test_order_keys(held: Command) -> None:
    [row] = held("queue", "order-keys", "mail", "--json").json
    expected = {
        "queue": "mail",
        "order_key": "account:7",
        "size": 2,
        "first": "broken",
        "state": "archived",
        "held": True,
    }
    assert row == expected
    shown = held("queue", "order-keys", "mail", "--held")
    assert shown.code == 0
    assert "account:7" in shown.out
    assert "holds up the rest" in shown.out


def test_a_task_that_waits_for_its_turn_shows_why_and_no_due_time(held: Command) -> None:
    shown = held("task", "list", "-q", "mail", "-s", "scheduled")
    assert "waiting for order key account:7" in shown.out
    assert "2286" not in shown.out
    [row] = held("task", "list", "-q", "mail", "-s", "scheduled", "--json").json
    assert (row["waiting_for"], row["next_process_at"]) == ("order key account:7", None)
    task = held("task", "inspect", "-q", "mail", "--id", row["id"], "--json").json
    assert (task["waiting_for"], task["next_process_at"]) == ("order key account:7", None)


def test_no_more_order_keys_than_wanted_the_longest_first(veredus: Command) -> None:
    async def fill() -> None:
        async with App(veredus.url) as app:
            for key in ("short", "long", "long", "long", "middle", "middle"):
                await app.enqueue("book", queue="mail", order_key=key)

    asyncio.run(fill())
    for limit in (1, 2, 3):
        rows = veredus("queue", "order-keys", "mail", "--json", "--limit", str(limit)).json
        assert [row["order_key"] for row in rows] == ["long", "middle", "short"][:limit]


def test_release(held: Command) -> None:
    ended = held("queue", "release", "mail", "account:7")
    assert ended.out.strip() == "account:7: released, without task broken"
    assert "No order key is held up" in held("queue", "order-keys", "mail", "--held").out
    held("queue", "release", "mail", "account:7").refused(1, "nothing holds up the order key 'account:7'")


def test_limits(held: Command) -> None:
    rows = held("queue", "limits", "mail", "--json").json
    assert [(row["scope"], row["rate"], row["begun"]) for row in rows] == [("task:book", "5/m", 1)]
    assert "5/m" in held("queue", "limits", "mail").out
    assert "has no limits" in held("queue", "limits", "mail", "--remove", "task:book").out
    held("queue", "limits", "mail", "--remove", "task:book").refused(2, "limit")


def test_nothing_to_show(held: Command) -> None:
    held("queue", "order-keys", "male").refused(1, "did you mean 'mail'")
