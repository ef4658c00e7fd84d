"""Quick with very many tasks: every page of a long queue answers in 200 ms; 1,000,000 with VEREDUS_TEST_FULL."""

from __future__ import annotations

import statistics
import time
from typing import Any

import httpx
import pytest

from tests.dashboard.conftest import TOKEN
from tests.support.servers import RealServer
from tests.support.sizes import FULL
from veredus.model.message import TaskMessage
from veredus.wire.messages import encode_task

MANY = 1_000_000 if FULL else 20_000
MOST = 0.2 if FULL else 1.0
"""Seconds that a page may take, in the middle of five; among many tests at once the machine is not its own."""


def _fill(server: RealServer, state: str, now: int) -> None:
    """Tasks written directly: the scripts would take long."""
    client = server.client()
    data = encode_task(
        TaskMessage(
            id="x", queue="big", type="email:send", payload=b'{"user_id":42,"lang":"en"}', retry=25, timeout=1800
        )
    )
    for start in range(0, MANY, 5000):
        pipe = client.pipeline(transaction=False)
        ids = [f"{state}-{n:07d}" for n in range(start, min(start + 5000, MANY))]
        for one in ids:
            pipe.hset(f"asynq:{{big}}:t:{one}", mapping={"msg": data, "state": state, "pending_since": now * 10**9})
        if state == "pending":
            pipe.lpush("asynq:{big}:pending", *ids)
        else:
            pipe.zadd(f"asynq:{{big}}:{state}", {one: now + 3600 + start + n for n, one in enumerate(ids)})
        pipe.execute()
    client.sadd("asynq:queues", "big")


@pytest.mark.timeout(900 if FULL else 60)
@pytest.mark.parametrize("state", ["pending", "scheduled"])
async def test_every_page_of_a_long_queue_is_quick(valkey_server: RealServer, served: str, state: str) -> None:
    _fill(valkey_server, state, int(time.time()))
    last = MANY // 50
    asked: dict[str, dict[str, Any]] = {
        "overview": {},
        "queue": {"queue": "big"},
        "history": {"queue": "big", "days": 90},
        "tasks first": {"queue": "big", "state": state},
        "tasks middle": {"queue": "big", "state": state, "page": last // 2},
        "tasks last": {"queue": "big", "state": state, "page": last},
        "tasks search": {"queue": "big", "state": state, "type": "sms:*"},
        "task": {"queue": "big", "id": f"{state}-{MANY // 2:07d}"},
        "flags": {},
        "throughput": {},
        "types": {},
        "errors": {},
        "waiting": {},
        "servers": {},
        "schedules": {},
        "groups": {"queue": "big"},
        "order-keys": {"queue": "big"},
        "limits": {"queue": "big"},
        "server": {},
    }
    taken: dict[str, float] = {}
    async with httpx.AsyncClient(base_url=served, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as client:
        for name, query in asked.items():
            times = []
            for _ in range(5):
                before = time.perf_counter()
                answer = await client.get(f"api/{name.split()[0]}", params=query)
                times.append(time.perf_counter() - before)
                assert answer.status_code == 200, answer.text
            taken[name] = statistics.median(times)
            if name == "tasks last":
                assert len(answer.json()["tasks"]) == 50
                assert answer.json()["total"] == MANY
    print(f"{MANY:,} {state}: " + ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in taken.items()))
    assert {name: seconds for name, seconds in taken.items() if seconds > MOST} == {}
