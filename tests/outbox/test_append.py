"""append, ack, read: numbers without holes, quotas and their policies, dedupe keys, trimming, hints."""

from __future__ import annotations

import asyncio

import pytest

from tests.outbox.support import Ears, Log, tail, text_of
from tests.support.servers import VALKEY_ONLY
from veredus.errors import CommandRefused, ConfigError
from veredus.model.delivery import LogState, PushStatus, Quota, SyncHint, has_room
from veredus.store.sessions.outbox import Append
from veredus.wire import session_keys as keys
from veredus.wire.log_entries import HEADER, Hint, Kick


async def test_each_message_gets_the_next_number_and_a_later_time(log: Log) -> None:
    a, b = await log.create(), await log.create("eve")
    results = await log.store.outbox.append(
        [Append(a.sid, tail("a1")), Append(b.sid, tail("b1")), Append(a.sid, tail("a2"))]
    )
    assert results == [(PushStatus.QUEUED, 1, a.sid), (PushStatus.QUEUED, 1, b.sid), (PushStatus.QUEUED, 2, a.sid)]
    assert [r.seq for r in await log.push(a.sid, "a3", "a4")] == [3, 4]
    entries = await log.entries(a.sid)
    assert [text_of(entry.tail) for entry in entries] == ["a1", "a2", "a3", "a4"]
    times = [entry.ts for entry in entries]
    assert times == [log.now * 1000 + i for i in range(4)]
    log.later(-5000)  # a clock that jumps back makes no earlier times
    await log.push(a.sid, "a5")
    assert (await log.entries(a.sid))[-1].ts == times[-1] + 1


async def test_what_is_in_redis_is_what_the_page_says(log: Log) -> None:
    created = await log.create(groups=["g"])
    sid, tag = created.sid, created.sid[:4]
    before = await log.everything()
    assert set(before) == {
        keys.meta(sid), keys.sessions(tag), keys.attached(tag, "n1"), keys.user("bob"), keys.group(tag, "g"),
        keys.session_groups(sid), keys.group_partitions("g"), keys.emptied(tag),
    }  # fmt: skip
    await log.store.outbox.append([Append(sid, b"TAIL", expiry="+500", dedupe_key="k")])
    after = await log.everything()
    assert set(after) - set(before) == {keys.outbox(sid), keys.dedupe(sid, "k")}
    assert after[keys.dedupe(sid, "k")] == ("string", "1", "minutes")
    (raw,) = await log.client.lrange(keys.outbox(sid), 0, -1)
    assert raw == HEADER.pack(log.now * 1000, log.now + 500, 28) + b"TAIL"
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {keys.meta(sid)}
    old, new = before[keys.meta(sid)].value, after[keys.meta(sid)].value
    assert {name: new[name] for name in new if old.get(name) != new[name]} == {
        "s": "1", "lt": str(log.now * 1000), "cb": "28",
    }  # fmt: skip


async def test_gone_is_told_and_nothing_is_written(log: Log) -> None:
    created = await log.create()
    await log.store.sessions.detach([(created.sid, 1)])
    before = await log.everything()
    assert (await log.push("p000-nobody", "x"))[0].status is PushStatus.GONE
    log.later(60_000)
    assert (await log.push(created.sid, "x"))[0] == (PushStatus.GONE, 0, created.sid)
    assert await log.everything() == before


async def test_the_notifies_of_all_requests_leave_one_key_which_goes_with_the_answers(log: Log) -> None:
    sid = (await log.create()).sid
    for rid in range(1, 21):
        await log.accept(sid, rid)
        for number in range(1, 21):
            assert (await log.push(sid, "x", notify=(rid, number)))[0].status is PushStatus.QUEUED
        assert (await log.push(sid, "x", notify=(rid, 7)))[0] == (PushStatus.DUPLICATE, 0, sid)
    everything = await log.everything()
    assert {name for name in everything if f":s:{sid}:" in name} == {
        keys.meta(sid), keys.outbox(sid), keys.requests(sid), keys.told(sid)
    }  # fmt: skip
    assert everything[keys.told(sid)] == ("hash", {str(rid): "1-20" for rid in range(1, 21)}, "minutes")
    for rid in range(1, 20):
        await log.respond(sid, rid)
    await log.store.outbox.ack([(sid, 1, 20)])  # 20 has no answer yet: it may run again
    assert (await log.everything())[keys.told(sid)].value == {"20": "1-20"}
    await log.store.sessions.close(sid)
    assert keys.told(sid) not in await log.everything()


async def test_a_notify_that_comes_after_the_client_has_seen_the_answer_is_a_repeated_one(log: Log) -> None:
    """A handler runs again if its worker died between the answer and the end of the task: then its numbers are gone."""
    sid = (await log.create()).sid
    for rid in (1, 2, 3):
        await log.accept(sid, rid)
        await log.push(sid, "x", notify=(rid, 1))
    for rid in (1, 2):
        await log.respond(sid, rid)
    await log.store.outbox.ack([(sid, 1, 3)])
    before = await log.everything()
    for rid in (1, 2):
        for number in (1, 2):
            assert (await log.push(sid, "x", notify=(rid, number)))[0] == (PushStatus.DUPLICATE, 0, sid)
    assert await log.everything() == before
    assert (await log.push(sid, "x", notify=(3, 2)))[0].status is PushStatus.QUEUED, "it has no answer yet"
    assert (await log.push(sid, "x", notify=(4, 1)))[0].status is PushStatus.QUEUED, "of a handler in a gateway"


async def test_the_numbers_of_notifies_are_kept_until_the_deadline_of_the_longest_request(log: Log) -> None:
    """A handler may say nothing for an hour, and its next attempt begins again with number 1."""
    sid = (await log.create()).sid
    await log.accept(sid, 1, 7_200_000)
    await log.accept(sid, 2)
    for rid in (1, 2):
        await log.push(sid, "x", notify=(rid, 1))
    assert 7_200_000 < await log.client.pttl(keys.told(sid)) <= 7_500_000
    assert (await log.push(sid, "x", notify=(1, 1)))[0] == (PushStatus.DUPLICATE, 0, sid)


async def test_notifies_are_known_by_their_numbers_in_any_order_and_after_drops(log: Log) -> None:
    sid = (await log.create()).sid
    numbers = [2, 1, 5, 4, 9, 2, 5, 3, 9, 7, 6, 8]
    results = [(await log.push(sid, str(n), notify=(1, n)))[0].status for n in numbers]
    assert [r is PushStatus.QUEUED for r in results] == [n not in numbers[:i] for i, n in enumerate(numbers)]
    assert (await log.everything())[keys.told(sid)].value == {"1": "1-9"}
    for number in range(1, 401, 2):  # every other one was dropped: what is kept of them is bounded
        await log.push(sid, "x", notify=(2, number))
    ranges = (await log.everything())[keys.told(sid)].value["2"].split(",")
    assert (len(ranges), ranges[0], ranges[-1]) == (64, "1-273", "399-399")
    assert (await log.push(sid, "x", notify=(2, 398)))[0].status is PushStatus.QUEUED


async def test_a_notify_that_the_version_before_has_told_is_known(log: Log) -> None:
    sid = (await log.create()).sid
    await log.client.set(keys.dedupe(sid, f"{sid}.1:3"), 17)
    assert (await log.push(sid, "x", notify=(1, 3)))[0] == (PushStatus.DUPLICATE, 17, sid)


async def test_a_key_is_used_once_also_within_one_call(log: Log) -> None:
    sid = (await log.create()).sid
    results = await log.push(sid, "a", "b", dedupe_key="k")
    assert [r.status for r in results] == [PushStatus.QUEUED, PushStatus.DUPLICATE]
    assert (await log.push(sid, "c", dedupe_key="k"))[0] == (PushStatus.DUPLICATE, 1, sid)
    assert await log.texts(sid) == ["a"]


async def test_reject_refuses_before_numbering(log: Log) -> None:
    sid = (await log.create(quota=Quota(entries=2))).sid
    assert [r.status for r in await log.push(sid, "a", "b", "c")] == [
        PushStatus.QUEUED,
        PushStatus.QUEUED,
        PushStatus.FULL,
    ]
    before = await log.everything()
    assert (await log.push(sid, "d", dedupe_key="k"))[0] == (PushStatus.FULL, 0, sid)
    assert await log.everything() == before
    assert await log.store.outbox.ack([(sid, 1, 0)]) == ["ok"]
    assert (await log.push(sid, "e"))[0].seq == 3
    assert await log.texts(sid) == ["b", "e"]


async def test_the_quota_counts_bytes_as_the_law_says(log: Log) -> None:
    sid = (await log.create(quota=Quota(bytes=1024))).sid
    size = len(tail("x" * 300)) + 24
    accepted = 0
    while has_room(LogState("e", accepted, 0, 0, bytes=accepted * size), Quota(bytes=1024), size):
        accepted += 1
    statuses = [r.status for r in await log.push(sid, *["x" * 300] * 5)]
    assert statuses == [PushStatus.QUEUED] * accepted + [PushStatus.FULL] * (5 - accepted)


async def test_drop_oldest_moves_the_policy_floor_and_keeps_the_numbers(log: Log) -> None:
    sid = (await log.create(quota=Quota(entries=3))).sid
    await log.push(sid, "a", "b", "c")
    assert [r.seq for r in await log.push(sid, "d", "e", policy="drop_oldest")] == [4, 5]
    assert await log.texts(sid) == ["c", "d", "e"]
    meta = await log.meta(sid)
    assert (meta["f"], meta["pf"], meta["s"]) == ("2", "2", "5")
    # More in one call than fits at all: the numbers go on, the last ones stay.
    assert [r.seq for r in await log.push(sid, *"fghij", policy="drop_oldest")] == [6, 7, 8, 9, 10]
    assert await log.texts(sid) == ["h", "i", "j"]
    (excerpt,) = await log.store.outbox.read([(sid, 3, 10, 10_000)])
    assert excerpt is not None
    assert (excerpt.floor, excerpt.policy_floor, excerpt.entries[0].seq) == (7, 7, 8)
    # One that is larger than the whole quota drops nothing.
    assert (await log.push(sid, "x" * 1_048_570, policy="drop_oldest"))[0].status is PushStatus.FULL
    assert await log.texts(sid) == ["h", "i", "j"]


async def test_drop_oldest_drops_only_what_is_needed_of_what_was_not_acknowledged(log: Log) -> None:
    size = len(tail("x" * 500)) + 24
    sid = (await log.create(quota=Quota(bytes=3 * size))).sid
    await log.push(sid, *["x" * 500] * 3)
    assert await log.store.outbox.ack([(sid, 2, 0)]) == ["ok"]
    assert [r.seq for r in await log.push(sid, *["y" * 500] * 2, policy="drop_oldest")] == [4, 5]
    assert [text[0] for text in await log.texts(sid)] == ["x", "y", "y"], "there was room for both"
    assert [r.seq for r in await log.push(sid, "z" * 500, policy="drop_oldest")] == [6]
    assert [text[0] for text in await log.texts(sid)] == ["y", "y", "z"]


async def test_close_ends_the_session_and_tells_its_node(log: Log) -> None:
    sid = (await log.create(quota=Quota(entries=1, policy="close"))).sid
    async with Ears(log.client, "n1") as ears:
        assert [r.status for r in await log.push(sid, "a", "b")] == [PushStatus.QUEUED, PushStatus.FULL]
        assert await ears.messages(1) == [[Kick(sid, 1, "full")]]
    assert await log.everything() == {}


async def test_one_message_per_node_and_call_tells_all_rows(log: Log) -> None:
    a, b = await log.create(), await log.create("eve", node="n2")
    c, off = await log.create("joe"), await log.create("off")
    await log.store.sessions.detach([(off.sid, 1)])
    async with Ears(log.client, "n1") as one, Ears(log.client, "n2") as two:
        await log.store.outbox.append(
            [Append(sid, tail(f"{n}")) for n, sid in enumerate([a.sid, b.sid, c.sid, a.sid, off.sid])]
        )
        (rows,) = await one.messages(1)
        hints = [row for row in rows if isinstance(row, Hint)]
        assert {(row.sid, row.first, row.count) for row in hints} == {(a.sid, 1, 2), (c.sid, 1, 1)}
        assert len(hints) == len(rows)
        (mine,) = [row for row in hints if row.sid == a.sid]
        assert list(mine.entries) == await log.entries(a.sid)
        assert [row.sid for row in (await two.messages(1))[0] if isinstance(row, Hint)] == [b.sid]
        await log.push(a.sid, "x" * 5000)
        assert await one.messages(1) == [[Hint(a.sid, 3, 1, ())]]
        assert await one.silent()
        assert await two.silent()


async def test_acks_trim_what_was_acknowledged_and_nothing_else(log: Log) -> None:
    sid = (await log.create()).sid
    await log.push(sid, *"abcde")
    entries = await log.entries(sid)
    before = await log.everything()
    assert await log.store.outbox.ack([(sid, 6, 0), (sid, 0, 0), ("p000-nobody", 1, 0)]) == ["ahead", "ok", "gone"]
    assert await log.store.outbox.ack([(sid, 3, 0, entries[2].ts + 1)]) == ["forked"]  # another message was seen
    assert await log.everything() == before
    assert await log.store.outbox.ack([(sid, 3, 0, entries[2].ts)]) == ["ok"]
    assert await log.texts(sid) == ["d", "e"]
    meta = await log.meta(sid)
    assert (meta["f"], meta["ft"]) == ("3", str(entries[2].ts))
    assert int(meta["cb"]) - int(meta["cf"]) == sum(24 + len(entry.tail) for entry in entries[3:])
    assert await log.store.outbox.ack([(sid, 2, 0)]) == ["ok"]  # late acks are no step back
    assert await log.texts(sid) == ["d", "e"]
    assert await log.store.outbox.ack([(sid, 5, 0)]) == ["ok"]
    assert keys.outbox(sid) not in await log.everything()
    assert (await log.push(sid, "f"))[0].seq == 6


async def test_read_is_bounded_by_number_and_bytes(log: Log) -> None:
    sid = (await log.create()).sid
    await log.push(sid, *["x" * 100] * 10)
    rows = [(sid, 3, 4, 100_000), (sid, 3, 10, 300), (sid, 3, 10, 1), (sid, 11, 10, 1000), (sid, 1, 0, 0)]
    found = await log.store.outbox.read([*rows, ("p000-nobody", 1, 1, 1)])
    assert [excerpt and [entry.seq for entry in excerpt.entries] for excerpt in found] == [
        [3, 4, 5, 6], [3, 4], [3], [], [], None,
    ]  # fmt: skip
    assert found[4] is not None
    assert (found[4].top, found[4].generation) == (10, 1)


async def test_damage_stops_a_call_before_its_first_write(log: Log) -> None:
    a, b = await log.create(), await log.create("eve")
    await log.client.set(keys.outbox(b.sid), "x")
    before = await log.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await log.store.outbox.append([Append(a.sid, tail("1")), Append(b.sid, tail("2"))])
    assert await log.everything() == before


@VALKEY_ONLY
async def test_fifty_senders_at_once_make_one_sequence(log: Log) -> None:
    """Numbering and appending are one step, so there is nothing to reorder."""
    sid = (await log.create(quota=Quota(entries=10_000))).sid

    async def sender(name: int) -> list[int]:
        return [(await log.push(sid, f"{name}:{i}"))[0].seq for i in range(20)]

    numbers = await asyncio.gather(*[sender(name) for name in range(50)])
    assert sorted(n for row in numbers for n in row) == list(range(1, 1001))
    assert all(row == sorted(row) for row in numbers)
    texts = await log.texts(sid)
    for name in range(50):
        assert [text for text in texts if text.startswith(f"{name}:")] == [f"{name}:{i}" for i in range(20)]


@pytest.mark.parametrize("sid", ["", "x", "p0a3V", "q0a3-xyz", "p999-xyz"])
async def test_what_is_no_session_id_is_refused_with_its_name(log: Log, sid: str) -> None:
    with pytest.raises(ConfigError, match="session"):
        await log.push(sid, "x")


@pytest.mark.parametrize(("room", "status"), [(0, PushStatus.QUEUED), (-1, PushStatus.FULL)])
async def test_a_message_may_fill_the_quota_to_the_last_byte(log: Log, room: int, status: PushStatus) -> None:
    """With the 24 bytes that each entry begins with."""
    first, second = tail("y"), tail("x" * 2000)
    sid = (await log.create(quota=Quota(bytes=len(first) + len(second) + 48 + room))).sid
    assert (await log.push(sid, "y"))[0].status is PushStatus.QUEUED
    assert (await log.push(sid, "x" * 2000))[0].status is status


async def test_the_only_message_in_a_log_always_fits(log: Log) -> None:
    """Else one of the largest size that is allowed could never be sent."""
    sid = (await log.create(quota=Quota(bytes=1024))).sid
    assert (await log.push(sid, "x" * 2000))[0].status is PushStatus.QUEUED
    assert (await log.push(sid, "y"))[0].status is PushStatus.FULL
    held = (await log.create(quota=Quota(bytes=1024))).sid
    assert (await log.bind(held, 1, SyncHint.BEFORE_RESPONSE, "x" * 2000)).status is PushStatus.HELD
    assert (await log.bind(held, 1, SyncHint.BEFORE_RESPONSE, "y")).status is PushStatus.FULL


@VALKEY_ONLY
async def test_a_node_is_told_so_many_bytes_at_once_and_no_more(log: Log) -> None:
    """Of one message to very many sessions: what does not fit is read from their logs."""
    data = tail("x" * 4000)
    most = (1 << 20) // (24 + len(data))
    for _ in range(most + 5):
        await log.create(max_sessions=0)
    async with Ears(log.client, "n1") as ears:
        await log.store.outbox.append_to_user("bob", data)
        (told,) = await ears.messages(1)
    inline = [len(hint.entries) for hint in told if isinstance(hint, Hint)]
    assert (inline.count(1), inline.count(0)) == (most, 5)
