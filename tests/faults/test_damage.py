"""Scripts check before they write: whichever key is damaged, a script that fails has changed nothing."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

from tests.faults.damage import noted_calls
from tests.inspector.support import Bench
from tests.support.servers import VALKEY_ONLY, RealServer
from veredus import App
from veredus.errors import ConfigError, WrongState
from veredus.store.store import Store

pytestmark = VALKEY_ONLY


async def test_enqueuing_with_every_option(server: RealServer, url: str) -> None:
    choices: list[list[dict[str, Any]]] = [
        [{}, {"delay": 60}],
        [{}, {"order_key": "k"}],
        [{}, {"limit_key": "l"}],
        [{}, {"group": "g"}],
        [{}, {"unique_for": 600}],
    ]
    async with App(url) as app:

        @app.task(name="t")
        async def task(n: int) -> None: ...

        with noted_calls(server, most=40) as calls:
            for number, picked in enumerate(itertools.product(*choices)):
                options = {name: value for one in picked for name, value in one.items()}
                if "group" in options and len(options) > 1:
                    continue  # a group goes with few other options
                await task.using(**options).enqueue(number)
    assert not calls.written_by_failures()


@pytest.mark.parametrize("state", ["pending", "scheduled", "retry", "archived", "completed", "aggregating"])
async def test_every_change_of_a_task_in_any_state(
    server: RealServer, store: Store, redis_client: Any, state: str
) -> None:
    q = Bench(store.redis, redis_client)
    changes: list[Any] = [
        lambda i: i.run("q", "a"),
        lambda i: i.archive("q", "a"),
        lambda i: i.delete("q", "a"),
        lambda i: i.reschedule("q", "a", delay=60),
        lambda i: i.edit_payload("q", "a", {"n": 2}),
        lambda i: i.move("q", "a", "r"),
        lambda i: i.cancel("q", "a", then="archive"),
        lambda i: i.cancel("q", "a", then="delete"),
        lambda i: i.run_all("q", state),
        lambda i: i.archive_all("q", state),
        lambda i: i.delete_all("q", state),
    ]
    with noted_calls(server, most=8) as calls:
        for change in changes:
            await redis_client.flushall()
            q.number = 0
            await q.fill(state, "a", "b")
            await redis_client.hset(q.task("a"), "unique_key", q.lock())
            await redis_client.set(q.lock(), "a", ex=600)
            with contextlib.suppress(WrongState, ConfigError):  # some make no sense in this state
                await change(q.inspector)
    assert {call.script.name for call in calls.made.values()} >= {
        "inspect/delete",
        "inspect/delete_all",
        "cancel/cancel",
    }
    assert not calls.written_by_failures()
