"""recover: tasks whose worker has gone are claimed by exactly one recoverer and never leave active on the way."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.keyspace import Key
from tests.support.queue import LEASE_END, LEASE_MS, NOW, Queue, differences
from veredus.errors import CommandRefused
from veredus.store.store import Store, connect

EXPIRED = LEASE_END * 1000
"""The first millisecond in which a lease taken at NOW has ended."""
CLAIM_END = LEASE_END + 5


async def test_an_expired_task_is_claimed_and_stays_active(q: Queue) -> None:
    await q.enqueue(("a", b"A"))
    await q.dequeue()
    before = await q.everything()
    assert await q.recover(now=EXPIRED) == (True, [("a", b"A", 1)], [])
    claimed = {"msg": "A", "state": "active", "held": f"r:1:{CLAIM_END}", "losses": "1", "lost_by": "1 w:1"}
    assert differences(before, await q.everything()) == {
        q.key("lease"): Key("zset", {"a": str(CLAIM_END)}, "none"),
        q.task("a"): Key("hash", claimed, "none"),
    }


async def test_a_lease_of_ours_needs_no_slack_and_gets_its_last_millisecond(q: Queue) -> None:
    await q.activate("a")
    before = await q.everything()
    assert await q.recover(now=EXPIRED - 1) == (True, [], [])
    assert await q.everything() == before
    assert len((await q.recover(now=EXPIRED))[1]) == 1


async def test_a_foreign_lease_gets_thirty_seconds_of_slack(q: Queue) -> None:
    """Go's lease, with or without fields of ours from an earlier run of the task."""
    await q.activate("a", "b")
    await q.client.hdel(q.task("a"), "held")
    await q.client.zadd(q.key("lease"), {"a": LEASE_END + 1, "b": LEASE_END + 1})
    before = await q.everything()
    over = (LEASE_END + 1) * 1000 + 30_000
    assert await q.recover(now=over - 1) == (True, [], [])
    assert await q.everything() == before
    _, claimed, _ = await q.recover(now=over)
    assert sorted(claimed) == [("a", b"", 1), ("b", b"", 1)]


async def test_foreign_leases_within_their_slack_do_not_hide_ours(q: Queue) -> None:
    await q.activate("a", "b")
    await q.client.zadd(q.key("lease"), {"a": LEASE_END - 1})
    _, claimed, _ = await q.recover(limit=1, now=EXPIRED)
    assert [row[0] for row in claimed] == ["b"]


async def test_not_even_a_thousand_foreign_leases_within_their_slack_hide_ours(q: Queue) -> None:
    await q.activate("ours")
    await q.client.zadd(q.key("lease"), {f"gos{number}": LEASE_END - 1 for number in range(1000)})
    _, claimed, _ = await q.recover(now=EXPIRED)
    assert [row[0] for row in claimed] == ["ours"]


async def test_of_three_recoverers_exactly_one_gets_each(q: Queue, url: str) -> None:
    ids = [f"t{i}" for i in range(200)]
    await q.activate(*ids)
    stores = [Store(connect(url)) for _ in range(3)]
    try:
        sweeps = await asyncio.gather(
            *[
                Queue(store.redis, q.client).recover(f"r{i}:1", limit=10, now=EXPIRED)
                for store in stores
                for _ in range(8)
                for i in [stores.index(store)]
            ]
        )
    finally:
        for store in stores:
            await store.close()
    claimed = [row[0] for _, rows, _ in sweeps for row in rows]
    assert len(claimed) == 200
    assert set(claimed) == set(ids)
    assert {(await q.fields(task_id))["losses"] for task_id in ids} == {"1"}
    assert sorted(await q.active()) == sorted(ids)


async def test_the_old_owner_is_fenced_off_and_the_recoverer_settles(q: Queue) -> None:
    await q.activate("a")
    await q.recover(now=EXPIRED)
    before = await q.everything()
    assert await q.done("a", now=EXPIRED) == [1]
    assert await q.everything() == before
    assert await q.retry(("a", "r:1", b"again", 0, 1), now=EXPIRED) == []
    assert await q.fields("a") == {"msg": "again", "state": "retry", "losses": "1"}


async def test_a_claim_that_is_not_settled_ends_and_is_claimed_again(q: Queue) -> None:
    await q.activate("a")
    """It was lost with its worker once: that a recoverer lost it too is no second loss."""
    first, second = "r:recoverer:1", "s:recoverer:1"
    assert (await q.recover(first, now=EXPIRED))[1] == [("a", b"", 1)]
    assert (await q.recover(second, now=EXPIRED + 4999))[1] == []
    assert (await q.recover(second, now=EXPIRED + 5000))[1] == [("a", b"", 1)]
    assert q.losers == ["w:1"]
    assert await q.archive(("a", first), now=EXPIRED + 5000) == [1]
    assert await q.archive(("a", second), now=EXPIRED + 5000) == []


async def test_losses_count_over_runs(q: Queue) -> None:
    await q.activate("a")
    for number in (1, 2, 3):
        expired = EXPIRED + number * 100_000
        assert (await q.recover("r:1", now=expired))[1] == [("a", b"" if number == 1 else b"new", number)]
        assert await q.retry(("a", "r:1", b"new", 0, 1), now=expired) == []
        assert (await q.forward(now=expired + 1))[0] == 1
        taken, _ = await q.dequeue(number=number + 1, now=expired + 1)
        assert taken == ["a"]


async def test_a_damaged_count_of_losses_does_not_stop_the_sweep(q: Queue) -> None:
    await q.activate("a", "b")
    await q.client.hset(q.task("a"), "losses", "x")
    _, claimed, _ = await q.recover(now=EXPIRED)
    assert sorted(claimed) == [("a", b"", 1), ("b", b"", 1)]
    assert (await q.fields("a"))["losses"] == "1"


async def test_a_claim_lasts_at_least_its_time(q: Queue) -> None:
    await q.activate("a")
    await q.recover(now=EXPIRED + 1)
    assert await q.scores("lease") == {"a": CLAIM_END + 1}


async def test_an_id_that_is_no_longer_active_is_tidied_and_not_reported(q: Queue) -> None:
    await q.activate("a", "b")
    await q.client.lrem(q.key("active"), 0, "a")
    before = await q.everything()
    swept, claimed, tidied = await q.recover(now=EXPIRED)
    assert (swept, [row[0] for row in claimed], tidied) == (True, ["b"], ["a"])
    changed = differences(before, await q.everything())
    assert changed[q.key("lease")] == Key("zset", {"b": str(CLAIM_END)}, "none")
    assert changed[q.task("a")] == Key("hash", {"msg": "", "state": "active"}, "none")


async def test_an_id_whose_hash_is_gone_is_tidied_and_not_reported(q: Queue) -> None:
    await q.activate("gone", "empty", "good")
    await q.client.delete(q.task("gone"))
    await q.client.hdel(q.task("empty"), "msg")
    assert await q.recover(now=EXPIRED) == (True, [("good", b"", 1)], ["empty"])
    assert await q.recover(now=EXPIRED + 30_000) == (True, [("good", b"", 2)], ["gone"])
    assert await q.active() == ["good"]
    assert list(await q.scores("lease")) == ["good"]
    assert await q.client.exists(q.task("empty"), q.task("gone")) == 0


async def test_a_task_key_of_a_wrong_type_is_tidied_and_left_as_it_is(q: Queue) -> None:
    await q.activate("bad", "good")
    await q.client.delete(q.task("bad"))
    await q.client.set(q.task("bad"), "x")
    assert await q.recover(now=EXPIRED + 30_000) == (True, [("good", b"", 1)], ["bad"])
    assert await q.active() == ["good"]
    assert await q.client.get(q.task("bad")) == b"x"


async def test_after_a_gap_it_only_notes_the_time(q: Queue) -> None:
    await q.activate("a")
    await q.client.lpush(q.key("active"), "no-lease")
    before = await q.everything()
    assert await q.recover(now=EXPIRED, since=EXPIRED - 4001, max_gap=4000) == (False, [], [])
    assert await q.everything() == before
    assert (await q.recover(now=EXPIRED, since=EXPIRED - 4000, max_gap=4000))[0] is True


async def test_the_first_sweep_of_a_process_only_notes_the_time(q: Queue) -> None:
    await q.activate("a")
    assert await q.recover(now=EXPIRED, since=0) == (False, [], [])


async def test_of_a_dead_worker_the_leases_are_claimed_before_they_end(q: Queue) -> None:
    await q.activate("a", "b", owner="dead:1")
    await q.activate("c", owner="dead:2")
    await q.activate("d", owner="alive:1")
    await q.client.zadd(q.key("lease"), {"b": LEASE_END + 30})
    swept, claimed, tidied = await q.recover(dead_worker="dead:", since=0, now=NOW + 1)
    assert (swept, sorted(row[0] for row in claimed), tidied) == (True, ["a", "c"], [])
    assert (await q.fields("d"))["held"].startswith("alive:1:")
    assert (await q.fields("b"))["held"].startswith("dead:1:")


async def test_active_without_a_lease_is_adopted_and_claimed_after_the_slack(q: Queue) -> None:
    await q.activate("a")
    await q.client.zrem(q.key("lease"), "a")
    assert await q.recover(now=NOW) == (True, [], [])
    assert await q.scores("lease") == {"a": NOW // 1000}
    over = NOW // 1000 * 1000 + 30_000
    assert await q.recover(now=over - 1) == (True, [], [])
    assert (await q.recover(now=over))[1] == [("a", b"", 1)]


async def test_a_dangling_active_id_without_a_lease_goes_in_the_end(q: Queue) -> None:
    await q.client.lpush(q.key("active"), "ghost", "ghost")
    assert await q.recover(now=NOW) == (True, [], [])
    assert await q.recover(now=NOW + 31_000) == (True, [], ["ghost"])
    assert await q.everything() == {}


async def test_the_limit_bounds_a_sweep(q: Queue) -> None:
    ids = [f"t{i}" for i in range(25)]
    await q.activate(*ids)
    claimed = []
    for expected in (10, 10, 5, 0):
        rows = (await q.recover(limit=10, now=EXPIRED))[1]
        assert len(rows) == expected
        claimed += [row[0] for row in rows]
    assert sorted(claimed) == sorted(ids)


@pytest.mark.parametrize("name", ["active", "lease"])
async def test_a_container_of_a_wrong_type_stops_it_before_the_first_write(q: Queue, name: str) -> None:
    await q.activate("a", "b")
    await q.client.delete(q.key(name))
    await q.client.set(q.key(name), "x")
    before = await q.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await q.recover(now=NOW + LEASE_MS + 60_000)
    assert await q.everything() == before


async def test_an_empty_queue(q: Queue) -> None:
    assert await q.recover() == (True, [], [])
    assert await q.everything() == {}


async def test_it_tells_when_the_next_lease_will_expire(q: Queue) -> None:
    await q.recover(now=NOW)
    assert q.next_expiry == -1
    await q.activate("a", "b")
    await q.extend(("b", "w:1", LEASE_MS + 5000))
    for now in (NOW, EXPIRED - 1):
        await q.recover(now=now)
        assert q.next_expiry == EXPIRED
    await q.recover(now=EXPIRED, limit=1, claim_ms=60_000)
    assert q.next_expiry == EXPIRED + 5000
    await q.recover(now=EXPIRED + 5000, limit=1, claim_ms=60_000)
    assert q.next_expiry == EXPIRED + 60_000
    await q.recover(now=EXPIRED + 5000, since=0)
    assert q.next_expiry == -1


async def test_active_without_a_lease_is_found_behind_many_older_ones(q: Queue) -> None:
    ids = [f"t{i:03}" for i in range(300)]
    await q.activate(*ids)
    await q.client.zrem(q.key("lease"), ids[-1])
    await q.recover(now=NOW)
    assert (await q.scores("lease"))[ids[-1]] == NOW // 1000


@pytest.mark.parametrize(("since", "swept"), [(EXPIRED - 4000, True), (EXPIRED - 4001, False), (EXPIRED + 1, False)])
async def test_only_a_sweep_that_comes_when_it_should_judges(q: Queue, since: int, swept: bool) -> None:
    """Too long after the one before it, or, by a clock that was set back, before it."""
    await q.activate("a")
    found, claimed, _ = await q.recover(since=since, now=EXPIRED)
    assert (found, len(claimed)) == (swept, swept)


@pytest.mark.parametrize("since", [0, NOW + 1])
async def test_leases_from_before_the_clock_was_set_back_are_brought_back(q: Queue, since: int) -> None:
    await q.activate("ours", "go")
    await q.client.hdel(q.task("go"), "held")
    back, furthest = NOW - 3_600_000, 60_000
    before = await q.everything()
    assert (await q.recover(since=since - 3_600_000 if since else 0, now=back, furthest=furthest))[0] is False
    end = -(-(back + furthest) // 1000)
    assert differences(before, await q.everything()) == {
        q.key("lease"): Key("zset", {"ours": str(end), "go": str(LEASE_END)}, "none"),
        q.task("ours"): Key("hash", {"msg": "", "state": "active", "held": f"w:1:{end}"}, "none"),
    }, "Go writes its leases by its own clock"
    assert await q.extend(("ours",), now=back) == [], "it is still its owner's"


async def test_a_lease_that_is_long_but_not_too_long_is_left_alone(q: Queue) -> None:
    await q.activate("a")
    before = await q.everything()
    await q.recover(since=0, now=NOW, furthest=LEASE_END * 1000 - NOW)
    await q.recover(since=NOW - 2000, now=NOW, furthest=1000)  # a sweep that judges brings nothing back
    assert await q.everything() == before
