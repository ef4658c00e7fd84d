"""Key names: Asynq's to the byte, ours beside them under the same hash tag."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import golden
from veredus.store.connection.cluster import slot_of
from veredus.wire import keys

VECTORS = golden.load("vectors")
OURS = {
    "active": keys.active("q"),
    "aggregation_set(g,sid)": keys.aggregation_set("q", "g", "sid"),
    "aggregation_sets": keys.aggregation_sets("q"),
    "archived": keys.archived("q"),
    "cancel_channel": keys.CANCEL_CHANNEL,
    "completed": keys.completed("q"),
    "failed(1794780000)": keys.failed_on("q", "2026-11-15"),
    "failed_total": keys.failed("q"),
    "group(g)": keys.group("q", "g"),
    "groups": keys.groups("q"),
    "lease": keys.lease("q"),
    "paused": keys.paused("q"),
    "pending": keys.pending("q"),
    "processed(1794780000)": keys.processed_on("q", "2026-11-15"),
    "processed(1794787199 in UTC+9)": keys.processed_on("q", "2026-11-15"),
    "processed_total": keys.processed("q"),
    "queues": keys.QUEUES,
    "retry": keys.retry("q"),
    "scheduled": keys.scheduled("q"),
    "scheduler(h:1:s)": keys.scheduler_entries("h", 1, "s"),
    "scheduler_history(eid)": keys.scheduler_history("eid"),
    "schedulers": keys.SCHEDULERS,
    "server(h,1,s)": keys.server("h", 1, "s"),
    "servers": keys.SERVERS,
    "task(id)": keys.task("q", "id"),
    "workers": keys.WORKERS,
    "workers(h,1,s)": keys.workers("h", 1, "s"),
}


def test_every_key_of_asynq() -> None:
    assert VECTORS["keys_of_queue_q"] == OURS


def test_prefixes_make_the_same_keys() -> None:
    assert keys.task_prefix("q") + "id" == keys.task("q", "id")
    assert keys.group_prefix("q") + "g" == keys.group("q", "g")
    assert keys.task("q", "id").startswith(keys.queue_prefix("q"))
    assert keys.semaphore("s") == "asynq:sema:s"


@pytest.mark.parametrize("vector", VECTORS["unique_key"], ids=lambda vector: vector["key"])
def test_unique_locks(vector: dict[str, Any]) -> None:
    payload = None if vector["payload"] is None else golden.raw(vector["payload"])
    assert keys.unique(vector["queue"], vector["type"], payload) == vector["key"]


@pytest.mark.parametrize("name", ["due", "delay_wakeup"])
def test_our_own_keys_share_the_slot_and_no_name_with_asynqs(name: str) -> None:
    ours = getattr(keys, name)("q")
    assert slot_of(ours) == slot_of(keys.pending("q"))
    assert ours not in VECTORS["keys_of_queue_q"].values()


def test_the_batch_of_a_worker_is_in_the_slot_of_its_queue() -> None:
    assert slot_of(keys.batch("q", "w{1}")) == slot_of(keys.pending("q"))


@pytest.mark.parametrize(
    ("key", "slot"),
    [("foo", 12182), ("{foo}bar", 12182), ("a{foo}bar{x}", 12182), ("{}foo", 9500), ("", 0), ("123456789", 12739)],
)
def test_slots_of_keys(key: str, slot: int) -> None:
    """Values that CLUSTER KEYSLOT gives."""
    assert slot_of(key) == slot
