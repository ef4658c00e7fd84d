"""The scripts that keep limits: who is handed out, who waits, and who is called when there is room."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.order.support import Bound, go_delete, go_run
from tests.support.keyspace import PARKED, Key, breaches
from tests.support.queue import LEASE_END, NOW, differences
from tests.support.servers import VALKEY_ONLY
from veredus.model.message import TaskMessage
from veredus.wire.messages import encode_task


def message(task_type: str) -> bytes:
    return encode_task(TaskMessage(type=task_type, id="x", queue="q", payload=b"p"))


async def fill(q: Bound, task_type: str, *ids: str, now: int | None = None) -> None:
    """As Go clients enqueue: without any field of ours."""
    await q.enqueue(*[(task_id, message(task_type)) for task_id in ids], now=now or q.now)


async def take(q: Bound, wanted: int = 10) -> list[str]:
    q.number = getattr(q, "number", 0) + 1  # type: ignore[attr-defined]
    ids, reply = await q.dequeue(wanted, number=q.number, now=q.now)  # type: ignore[attr-defined]
    q.wait = reply[6]  # type: ignore[attr-defined]
    q.owners = getattr(q, "owners", {}) | dict.fromkeys(ids, f"w:{q.number}")  # type: ignore[attr-defined]
    return ids


async def settle(q: Bound, verb: str, task_id: str) -> None:
    assert await getattr(q, verb)((task_id, q.owners[task_id]), now=q.now) == []  # type: ignore[attr-defined]


async def test_of_a_type_so_many_at_once_and_no_more(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "2 0 0"})
    await fill(q, "t", "a", "b", "c", "d")
    await fill(q, "free", "x")
    before = await q.everything()
    assert await take(q) == ["a", "b", "x"]
    changed = differences(before, await q.everything())
    assert changed[q.key("slots:task:t")] == Key("zset", {"a": str(LEASE_END), "b": str(LEASE_END)}, "days")
    assert changed[q.key("waiting:task:t")] == Key("zset", {"c": f"{NOW}000", "d": f"{NOW}000"}, "none")
    assert changed[q.key("scheduled")] == Key("zset", {"c": PARKED, "d": PARKED}, "none")
    assert changed[q.key("limited")] == Key("zset", {"task:t": str(min(LEASE_END * 1000, NOW + 60_000))}, "none")
    assert changed[q.task("c")].value["limited_by"] == "task:t"  # type: ignore[union-attr]
    assert changed[q.task("a")].value["slots"] == '["task:t"]'  # type: ignore[union-attr]
    assert q.key("slots:free") not in changed
    assert breaches(await q.everything()) == []


@pytest.mark.parametrize("verb", ["done", "complete", "archive", "retry", "requeue"])
async def test_whoever_stops_running_makes_room(q: Bound, verb: str) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b", "c")
    assert await take(q) == ["a"]
    await settle(q, verb, "a")
    assert (await q.states())["b"] == "pending"
    assert (await q.states())["c"] == "parked"
    assert {"slots", "held"}.isdisjoint(await q.fields("a")), "what it took up is not on its record any more"
    assert "b" in await take(q)
    assert breaches(await q.everything()) == []
    assert await q.client.zrange(q.key("slots:task:t"), 0, -1) == [b"b"]


async def test_who_came_first_goes_first_and_nobody_later_takes_the_room(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b", "c")
    await take(q)
    await settle(q, "done", "a")
    await fill(q, "t", "late", now=q.now + 1)
    await q.client.lrem(q.key("pending"), 0, "late")
    await q.client.rpush(q.key("pending"), "late")  # the next to run, before the one that was called
    assert await take(q) == ["b"]
    assert (await q.states())["late"] == "parked"


async def test_room_of_a_dead_worker_comes_back_when_its_task_is_recovered(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b")
    await take(q)
    q.now += 11_000
    await q.forward(now=q.now)
    assert (await q.states())["b"] == "parked"
    q.now = LEASE_END * 1000
    await q.recover(now=q.now)
    assert await q.retry(("a", "r:1"), now=q.now) == []
    assert (await q.states())["b"] == "pending"
    assert (await take(q))[0] == "b"


async def test_room_of_a_task_that_go_recovered_comes_back_when_its_lease_would_have_ended(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b")
    await take(q)
    await q.client.zrem(q.key("lease"), "a")
    q.now = LEASE_END * 1000 - 1
    assert (await q.forward(now=q.now))[0] == 0
    q.now += 1
    assert (await q.forward(now=q.now))[0] == 1
    assert await take(q) == ["b"]


async def test_room_is_kept_as_long_as_the_lease(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b")
    await take(q)
    for _ in range(5):
        q.now += 8000
        assert await q.extend(("a", "w:1"), now=q.now) == []
        await q.forward(now=q.now)
        assert await take(q) == []


async def test_starts_within_any_period(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "0 3 1000"})
    await fill(q, "t", *[f"t{n}" for n in range(10)])
    starts: list[int] = []
    rng = random.Random(5)
    while len(starts) < 10:
        _, due, _, _ = await q.forward(now=q.now)
        for task_id in await take(q, rng.randint(1, 4)):
            assert task_id == f"t{len(starts)}"
            starts.append(q.now)
        q.now = max(q.now + rng.choice([1, 90, 333]), 0)
        assert due < 0 or due <= q.now + 60_000
    assert min(b - a for a, b in zip(starts, starts[3:], strict=False)) >= 1000
    assert await q.client.llen(q.key("starts:task:t")) <= 3


async def test_the_forwarder_knows_the_exact_instant(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "0 1 700"})
    await fill(q, "t", "a", "b", "c")
    assert await take(q) == ["a"]
    assert (await q.forward(now=q.now))[1] == NOW + 700
    q.now += 699
    assert (await q.forward(now=q.now))[0] == 0
    q.now += 1
    assert (await q.forward(now=q.now))[0] == 1
    assert await take(q) == ["b"]
    assert (await q.forward(now=q.now))[1] == q.now + 700


async def test_a_key_is_counted_on_its_own(q: Bound) -> None:
    await q.limits.declare("q", {"task-key:t": "1 0 0"})
    for task_id, key in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("n1", ""), ("n2", "")):
        await q.line_up((task_id, ""), limit_key=key, message=message("t"))
    assert await take(q) == ["a1", "b1", "n1", "n2"]
    assert await q.client.zrange(q.key("waiting:task-key:1:t:a"), 0, -1) == [b"a2"]
    await settle(q, "done", "b1")
    assert (await q.states())["a2"] == "parked"
    await settle(q, "done", "a1")
    assert await take(q) == ["a2"]


async def test_the_order_key_counts_where_there_is_no_limit_key(q: Bound) -> None:
    await q.limits.declare("q", {"queue-key": "0 1 1000"})
    await q.line_up(("a", "k"), ("b", "k"))
    assert await take(q) == ["a"]
    await settle(q, "done", "a")
    assert await take(q) == []
    assert await q.states() == {"b": "parked"}
    assert breaches(await q.everything()) == []
    await q.advance_stale_lanes()
    assert await q.states() == {"b": "parked"}, "its turn, but not before there is room"
    q.now += 1000
    await q.forward(now=q.now)
    assert await take(q) == ["b"]


async def test_a_pattern_limits_all_types_that_fit_it_together(q: Bound) -> None:
    await q.limits.declare("q", {"task:mail:*": "2 0 0", "task:mail:fast": "5 0 0"})
    for n, task_type in enumerate(["mail:a", "mail:b", "mail:c", "mail:fast", "male"]):
        await fill(q, task_type, f"t{n}")
    assert await take(q) == ["t0", "t1", "t3", "t4"]


@pytest.mark.parametrize(("wide", "narrow"), [(9, 1), (1, 9)])
@pytest.mark.parametrize("reverse", [False, True])
async def test_of_several_patterns_the_longest_counts(q: Bound, wide: int, narrow: int, reverse: bool) -> None:
    specs = [("task:a.*", wide), ("task:a.b.*", narrow), ("task:*", 7)]
    for spec, most in reversed(specs) if reverse else specs:
        await q.limits.declare("q", {spec: f"{most} 0 0"})
    await fill(q, "a.b.c", *[f"n{i}" for i in range(10)])
    await fill(q, "a.x", *[f"w{i}" for i in range(10)])
    await fill(q, "other", *[f"o{i}" for i in range(10)])
    taken = await take(q, 40)
    assert [sum(task_id[0] == kind for task_id in taken) for kind in "nwo"] == [narrow, wide, 7]
    assert await q.client.zcard(q.key("slots:task:a.b.*")) == narrow


async def test_all_limits_must_have_room(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "2 0 0", "task-key:t": "1 0 0"})
    for task_id, key in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", "c")):
        await q.line_up((task_id, ""), limit_key=key, message=message("t"))
    assert await take(q) == ["a1", "b1"]
    await settle(q, "done", "b1")
    assert await take(q) == ["c1"]
    await settle(q, "done", "c1")
    assert await take(q) == [], "there is room for the type, but not for the key"
    await settle(q, "done", "a1")
    assert await take(q) == ["a2"]
    await settle(q, "done", "a2")
    assert not await q.client.keys("*:slots:*")
    assert not await q.client.keys("*:waiting:*")
    assert not await q.client.exists(q.key("limited"))


async def test_a_full_queue_leaves_its_tasks_pending_and_says_when_to_ask_again(q: Bound) -> None:
    await q.limits.declare("q", {"queue": "2 0 0"})
    await fill(q, "t", "a", "b", "c")
    assert await take(q) == ["a", "b"]
    assert await take(q) == []
    assert await q.pending() == ["c"]
    assert q.wait == LEASE_END * 1000 - NOW  # type: ignore[attr-defined]
    listening = q.client.pubsub()
    await listening.subscribe(q.key("delay_wakeup"))
    await listening.get_message(timeout=1)
    await settle(q, "done", "a")
    told = await listening.get_message(ignore_subscribe_messages=True, timeout=1)
    assert told["data"] == b"room"
    await listening.aclose()
    assert await take(q) == ["c"]


async def test_a_queue_over_its_rate_says_when_to_ask_again(q: Bound) -> None:
    await q.limits.declare("q", {"queue": "0 2 500"})
    await fill(q, "t", "a", "b", "c")
    assert await take(q) == ["a", "b"]
    q.now += 100
    assert await take(q) == []
    assert q.wait == 400  # type: ignore[attr-defined]
    q.now += 400
    assert await take(q) == ["c"]


async def test_a_lost_reply_takes_up_no_more_room(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "2 5 1000"})
    await fill(q, "t", "a", "b")
    assert await take(q) == ["a", "b"]
    ids, _ = await q.dequeue(10, number=1, again=1, now=q.now)
    assert ids == ["a", "b"]
    assert await q.client.llen(q.key("starts:task:t")) == 2


async def test_a_batch_handed_out_again_keeps_its_room_as_long_as_its_new_lease(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b")
    assert await take(q) == ["a"]
    q.now += 8000
    ids, _ = await q.dequeue(10, number=1, again=1, now=q.now)
    assert ids == ["a"]
    assert await q.scores("slots:task:t") == await q.scores("lease") == {"a": LEASE_END + 8}
    q.now = LEASE_END * 1000 + 1000
    await q.forward(now=q.now)
    assert await take(q) == [], "the first lease is over, but not the second"


async def test_whoever_begins_waits_for_no_limit_any_more(q: Bound) -> None:
    """Made pending by a Go tool, which knows nothing of the field, a task is handed out as soon as there is room."""
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b")
    await take(q)
    await go_run(q, "b")
    await settle(q, "done", "a")
    assert (await q.fields("b"))["limited_by"] == "task:t"
    assert await take(q) == ["b"]
    assert "limited_by" not in await q.fields("b")


async def test_without_its_limit_everybody_goes_on(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b", "c")
    await take(q)
    await q.limits.declare("q", {"task:t": ""})
    await q.forward(now=q.now)
    assert sorted(await take(q)) == ["b", "c"]
    assert not await q.client.exists(q.key("limited"), q.key("limits"))


async def test_a_greater_limit_counts_at_once_and_a_smaller_one_from_now_on(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b", "c", "d")
    await take(q)
    assert await q.limits.declare("q", {"task:t": "3 0 0"}) == 1
    assert await q.limits.declare("q", {"task:t": "3 0 0"}) == 0
    await q.forward(now=q.now)
    assert await take(q) == ["b", "c"]
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await settle(q, "done", "a")
    await settle(q, "done", "b")
    assert await take(q) == []
    await settle(q, "done", "c")
    assert await take(q) == ["d"]


async def test_what_go_runs_or_deletes_meanwhile_does_no_harm(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b", "c", "d")
    await take(q)
    await go_run(q, "c")
    assert await take(q) == []
    assert (await q.states())["c"] == "parked"
    await go_delete(q, "b")
    await settle(q, "done", "a")
    assert await take(q) == ["c"]
    assert breaches(await q.everything()) == []


@pytest.mark.parametrize("verb", ["delete", "archive", "cancel", "reschedule"])
async def test_taken_away_by_hand_it_waits_no_more(q: Bound, verb: str) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b")
    await take(q)
    more: dict[str, Any] = {"reschedule": {"delay": 60}}
    await getattr(q.inspector, verb)("q", "b", **more.get(verb, {}))
    assert not await q.client.exists(q.key("waiting:task:t"), q.key("limited"))
    assert breaches(await q.everything()) == []


async def test_a_call_that_nobody_answers_lapses(q: Bound) -> None:
    """Called and then taken away by Go, it must not keep its room for ever."""
    await q.limits.declare("q", {"task:t": "1 0 0"})
    await fill(q, "t", "a", "b", "c")
    await take(q)
    await settle(q, "done", "a")
    await go_delete(q, "b")
    assert await take(q) == []
    q.now += 11_000
    await q.forward(now=q.now)
    assert await take(q) == ["c"]


@VALKEY_ONLY
async def test_a_start_costs_the_same_however_many_wait(q: Bound) -> None:
    await q.limits.declare("q", {"task:t": "1 0 0"})

    async def cost(waiting: int) -> int:
        ids = [f"w{waiting}-{n}" for n in range(waiting)]
        for at in range(0, waiting, 500):
            await fill(q, "t", *ids[at : at + 500])
        while await q.client.llen(q.key("pending")):
            assert len(await take(q, 500)) <= 1
        running = (await q.active())[0]
        await q.client.config_resetstat()
        await settle(q, "done", running)
        assert len(await take(q, 1)) == 1
        stats = await q.client.info("commandstats")
        return sum(row["calls"] for name, row in stats.items() if name != "cmdstat_config|resetstat")

    few, many = await cost(10), await cost(5000)
    assert many <= few + 5, (few, many)


@VALKEY_ONLY
async def test_without_limits_and_order_keys_a_task_costs_not_one_command_more(q: Bound) -> None:
    """What the scripts of a plain task call, counted."""
    q.redis.is_watching = False
    await q.client.config_resetstat()
    await q.enqueue("a")
    await q.dequeue(1)
    await q.done("a")
    stats = await q.client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
    assert calls["hmget"] == 2, "one look at the task when it is handed out, one when it is settled"
    ours = {"zscore", "zrange", "zrangebyscore", "zremrangebyscore", "hget", "hgetall", "hexists", "lindex", "publish"}
    assert calls.keys() & ours == set()
