"""What this version writes beside Asynq's keys does not stay when only the previous version is left."""

from __future__ import annotations

import re

import pytest

from tests.upgrade.crew import NEW, OLD, Crew

pytestmark = pytest.mark.timeout(240)

_QUEUE = re.compile(r"asynq:\{[^}]*\}:")
_LIFELONG = {"asynq:queues", "asynq:servers", "asynq:workers"}
"""Asynq's own indexes, which never expire; killed workers are dropped from them when somebody looks."""
_LIFELONG_OF_QUEUE = {"processed", "failed", "limits"}
"""Asynq's own counters; the limits that an app declares stand until another declaration."""


def lasting(crew: Crew) -> set[str]:
    """Keys of which nothing says that they will go."""
    found = {name.decode() for name in crew.redis.scan_iter(count=5000) if crew.redis.ttl(name) == -1}
    return {
        name for name in found - _LIFELONG if not (_QUEUE.match(name) and _QUEUE.sub("", name) in _LIFELONG_OF_QUEUE)
    }


def test_nothing_of_this_version_stays_when_only_the_previous_one_is_left(crew: Crew) -> None:
    new = crew.side(NEW)
    stopped, killed = crew.worker(NEW, wait=False), crew.worker(NEW)
    crew.wait(lambda: stopped.is_ready, "the other worker")
    new("enqueue_many", type="job", payloads=[{"fails": n % 2} for n in range(20)])
    new("enqueue_many", type="lane", payloads=[{}] * 3, order_key="a")
    new("enqueue_many", type="limited", payloads=[{}] * 5)
    new("enqueue_many", type="member", payloads=list(range(5)), queue="grouped", group="team1")
    new("enqueue", type="job", unique_for=600)
    new("enqueue_many", type="stranger", payloads=[{}] * 3)
    crew.wait(lambda: crew.tasks_left() == 3, "the end of all but what nobody serves")
    new.leave()
    killed.kill()
    assert crew.stop([stopped]) == [0]

    old = crew.side(OLD)
    worker = crew.worker(OLD)
    crew.wait(lambda: crew.number_in("retry") == 3, "the previous version takes what this one passed over")
    for task in old("tasks", queue="default", state="retry"):
        old("cancel", id=task["id"], queue="default", then="delete")
    crew.wait_done()
    assert crew.stop([worker]) == [0]
    assert lasting(crew) == set()
    assert crew.breaches() == []
