"""Users with their mailboxes, groups, and everyone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.outbox.support import Ears, Log, tail
from tests.support.servers import VALKEY_ONLY
from veredus.errors import CommandRefused, ConfigError
from veredus.model.delivery import PushStatus, Quota
from veredus.store.sessions.broadcast import MAIL_ENTRIES
from veredus.store.sessions.outbox import Post
from veredus.store.store import Store, connect
from veredus.wire import session_keys as keys
from veredus.wire.log_entries import Hint


async def test_a_user_is_reached_in_all_sessions_in_one_step(log: Log) -> None:
    one, two = await log.create(node="n1"), await log.create(node="n2")
    await log.store.sessions.detach([(two.sid, 1)])
    full = await log.create(quota=Quota(entries=1))
    await log.push(full.sid, "x")
    results = await log.store.outbox.append_to_user("bob", tail("hi"))
    assert sorted(results) == sorted(
        [(PushStatus.QUEUED, 1, one.sid), (PushStatus.QUEUED, 1, two.sid), (PushStatus.FULL, 0, full.sid)]
    )
    assert await log.texts(two.sid) == ["hi"]


async def test_many_users_in_one_call_and_one_message_per_node(log: Log) -> None:
    sids = [(await log.create(f"u{i}")).sid for i in range(5)]
    async with Ears(log.client, "n1") as ears:
        answers = await log.store.outbox.append_to_users([Post(f"u{i}", tail(f"{i}")) for i in range(6)])
        assert [[r.status for r in answer] for answer in answers] == [[PushStatus.QUEUED]] * 5 + [[PushStatus.GONE]]
        assert {row.sid for row in (await ears.messages(1))[0] if isinstance(row, Hint)} == set(sids)
        assert await ears.silent()


async def test_a_key_counts_for_the_user_not_for_each_session(log: Log) -> None:
    one = await log.create()
    assert [r.status for r in await log.store.outbox.append_to_user("bob", tail("a"), dedupe_key="k")] == ["queued"]
    two = await log.create()
    assert await log.store.outbox.append_to_user("bob", tail("a"), dedupe_key="k") == [
        (PushStatus.DUPLICATE, 1, one.sid)
    ]
    assert await log.texts(two.sid) == []


async def test_an_absent_user_finds_the_mail_in_the_next_session(log: Log) -> None:
    outbox = log.store.outbox
    assert await outbox.append_to_user("bob", tail("lost")) == [(PushStatus.GONE, 0, "")]
    assert await log.everything() == {}
    assert await outbox.append_to_user("bob", tail("m1"), wait_ms=5000) == [(PushStatus.WAITING, 0, "")]
    assert await outbox.append_to_user("bob", tail("m1"), wait_ms=5000, dedupe_key="k") == [(PushStatus.WAITING, 0, "")]
    assert (await outbox.append_to_user("bob", tail("m1"), wait_ms=5000, dedupe_key="k"))[0].status == "duplicate"
    await outbox.append_to_user("bob", tail("too old"), wait_ms=100)
    await outbox.append_to_user("bob", tail("m3"), wait_ms=5000, expiry="+3000")
    await outbox.append_to_user("eve", tail("for eve"), wait_ms=5000)
    assert (await log.everything())[keys.mailbox("bob")].ttl == "seconds"
    log.later(1000)
    created = await log.create()
    assert created.top == 3
    entries = await log.entries(created.sid)
    assert await log.texts(created.sid) == ["m1", "m1", "m3"]
    assert [entry.expiry for entry in entries] == [0, 0, log.now + 2000]
    assert keys.mailbox("bob") not in await log.everything()
    assert (await log.create()).top == 0


@pytest.mark.parametrize("acknowledges", [False, True], ids=["stays silent", "acknowledges what followed"])
async def test_what_the_quota_dropped_is_not_delivered(log: Log, acknowledges: bool) -> None:
    small, other = await log.create(quota=Quota(entries=1)), await log.create()
    outbox = log.store.outbox
    await outbox.append_to_user("bob", tail("seen"), wait_ms=5000)
    await outbox.ack([(small.sid, 1, 0)])
    for text in ("first", "second"):
        log.later(1)
        await outbox.append_to_user("bob", tail(text), wait_ms=5000, policy="drop_oldest")
    await log.push(small.sid, "x", policy="drop_oldest")
    assert await log.texts(small.sid) == ["x"]
    if acknowledges:
        assert await outbox.ack([(small.sid, 4, 0)]) == ["ok"]
    await log.store.sessions.close(other.sid)
    assert await log.texts(small.sid) == [*["x"][acknowledges:], "first", "second"]


async def test_what_was_acknowledged_after_a_drop_is_delivered(log: Log) -> None:
    small, other = await log.create(quota=Quota(entries=1)), await log.create()
    outbox = log.store.outbox
    for text in ("dropped", "seen"):
        log.later(1)
        await outbox.append_to_user("bob", tail(text), wait_ms=5000, policy="drop_oldest")
    await outbox.ack([(small.sid, 2, 0)])
    for text in ("dropped too", "newest"):
        log.later(1)
        await outbox.append_to_user("bob", tail(text), wait_ms=5000, policy="drop_oldest")
    await log.store.sessions.close(other.sid)
    assert await log.texts(small.sid) == ["newest", "dropped", "dropped too"]


async def test_a_mailbox_is_bounded_and_what_waited_too_long_makes_room(log: Log) -> None:
    outbox = log.store.outbox
    rows = [Post("bob", tail("x"), wait_ms=1000)] * MAIL_ENTRIES
    await outbox.append_to_users(rows)
    assert (await outbox.append_to_user("bob", tail("x"), wait_ms=1000))[0].status is PushStatus.FULL
    log.later(1001)
    assert (await outbox.append_to_user("bob", tail("y"), wait_ms=1000))[0].status is PushStatus.WAITING
    assert await log.client.llen(keys.mailbox("bob")) == 1
    big = tail("z" * 600_000)
    statuses = [(await outbox.append_to_user("eve", big, wait_ms=1000))[0].status for _ in range(2)]
    assert statuses == [PushStatus.WAITING, PushStatus.FULL]


@pytest.mark.parametrize(("entries", "more_bytes", "fit"), [(2, 1, 2), (9, 0, 2), (9, -1, 1)])
async def test_a_mailbox_takes_as_much_as_fits_and_not_a_byte_more(
    log: Log, monkeypatch: pytest.MonkeyPatch, entries: int, more_bytes: int, fit: int
) -> None:
    monkeypatch.setattr("veredus.store.sessions.broadcast.MAIL_ENTRIES", entries)
    monkeypatch.setattr("veredus.store.sessions.broadcast.MAIL_BYTES", 2 * (24 + len(tail("x"))) + more_bytes)
    rows = [Post("bob", tail("x"), wait_ms=1000)] * 4
    statuses = [(await log.store.outbox.append_to_users([row]))[0][0].status for row in rows]
    assert statuses == [PushStatus.WAITING] * fit + [PushStatus.FULL] * (4 - fit)


async def test_names_that_could_be_taken_for_other_keys(log: Log) -> None:
    for user in ("a", "a:mail", "{x}", "a b", "ü" * 100, "a:i:k"):
        created = await log.create(user)
        assert created.sid[:4] == keys.user_tag(user)
        assert (await log.store.outbox.append_to_user(user, tail(user), dedupe_key="k"))[0].session == created.sid
        assert await log.texts(created.sid) == [user]
    with pytest.raises(ConfigError, match="user"):
        await log.store.outbox.append_to_user("", tail("x"))
    with pytest.raises(ConfigError, match="user"):
        await log.create("x" * 201)


async def test_a_group_across_partitions(log: Log) -> None:
    members = [(await log.create(f"u{i}", groups=["room"])).sid for i in range(30)]
    outsider = (await log.create("out")).sid
    assert await log.store.sessions.join(outsider, "other")
    assert await log.store.sessions.join("p000-nobody", "room") is False
    spread = await log.store.outbox.append_to_group("room", tail("hi"))
    assert spread.counts == {PushStatus.QUEUED: 30}
    for sid in members:
        assert await log.texts(sid) == ["hi"]
    assert await log.texts(outsider) == []
    assert await log.store.sessions.leave(members[0], "room") is True
    assert await log.store.sessions.leave(members[0], "room") is False
    spread = await log.store.outbox.append_to_group("room", tail("again"), dedupe_key="k")
    assert (spread.sessions, spread.ok) == (29, True)
    spread = await log.store.outbox.append_to_group("room", tail("again"), dedupe_key="k")
    assert spread.counts == {PushStatus.DUPLICATE: 29}
    assert (await log.store.outbox.append_to_group("nobody", tail("x"))).sessions == 0


async def test_a_large_group_in_one_partition_goes_in_bounded_chunks(log: Log) -> None:
    sids = [(await log.create("bob", groups=["room"], max_sessions=0)).sid for _ in range(45)]
    await log.client.config_resetstat()
    spread = await log.store.outbox.append_to_group("room", tail("hi"))
    assert spread.counts == {PushStatus.QUEUED: 45}
    calls = (await log.client.info("commandstats"))["cmdstat_zrangebylex"]["calls"]
    assert calls == 3
    for sid in sids:
        assert await log.texts(sid) == ["hi"]


async def test_groups_are_limited_and_forgotten_with_their_last_member(log: Log) -> None:
    with pytest.raises(ConfigError, match="at most 128 groups"):
        await log.create(groups=[f"g{i}" for i in range(129)])
    created = await log.create(groups=[f"g{i}" for i in range(128)])
    with pytest.raises(ConfigError, match="128"):
        await log.store.sessions.join(created.sid, "one more")
    assert await log.store.sessions.join(created.sid, "g0")
    await log.store.sessions.close(created.sid)
    await log.store.outbox.append_to_group("g0", tail("x"))
    assert keys.group_partitions("g0") not in await log.everything()


@VALKEY_ONLY
async def test_nobody_who_joined_is_overlooked_by_who_forgets_empty_partitions(log: Log, url: str) -> None:
    """Joining and forgetting are each several commands: in whatever order they come, the member is reached."""
    sid = (await log.create()).sid
    others = [Store(connect(url)) for _ in range(4)]
    for _ in range(60):
        await asyncio.gather(
            others[0].sessions.join(sid, "room"), *[other.outbox.append_to_group("room", b"x") for other in others]
        )
        assert (await log.store.outbox.append_to_group("room", b"y")).sessions == 1
        await log.store.sessions.leave(sid, "room")
    for other in others:
        await other.close()


async def test_whoever_has_ended_is_not_counted(log: Log) -> None:
    one, two = await log.create(groups=["room"]), await log.create("eve", groups=["room"], ttl_ms=10)
    await log.store.sessions.detach([(two.sid, 1)])
    log.later(11)
    for spread in (
        await log.store.outbox.append_to_group("room", tail("x")),
        await log.store.outbox.append_to_everyone(tail("x")),
    ):
        assert (spread.counts, spread.ok) == ({PushStatus.QUEUED: 1}, True)
    assert len(await log.texts(one.sid)) == 2


async def test_everyone(log: Log) -> None:
    sids = [(await log.create(f"u{i}")).sid for i in range(40)] + [(await log.create("")).sid for _ in range(10)]
    spread = await log.store.outbox.append_to_everyone(tail("all"))
    assert spread.counts == {PushStatus.QUEUED: 50}
    for sid in sids:
        assert await log.texts(sid) == ["all"]


async def test_so_many_partitions_are_walked_at_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veredus.store.sessions.broadcast.PARTITIONS_AT_ONCE", 3)
    for number in range(10):
        await log.create(f"u{number}")
    partitions, sizes = log.store.outbox.partitions, list[int]()
    run_tags = partitions.run_tags

    async def noted(*given: Any) -> Any:
        sizes.append(len(given[3]))
        return await run_tags(*given)

    monkeypatch.setattr(partitions, "run_tags", noted)
    assert (await log.store.outbox.append_to_everyone(tail("all"))).counts == {PushStatus.QUEUED: 10}
    assert max(sizes) == 3


async def test_damage_of_an_index_stops_before_the_first_write(log: Log) -> None:
    await log.create()
    await log.client.set(keys.user("eve"), "x")
    before = await log.everything()
    with pytest.raises(CommandRefused, match="WRONGTYPE"):
        await log.store.outbox.append_to_users([Post("bob", tail("1")), Post("eve", tail("2"))])
    assert await log.everything() == before


async def test_mail_is_not_kept_beyond_its_own_end(log: Log) -> None:
    await log.store.outbox.append_to_user("bob", tail("x"), wait_ms=5000, expiry="+1000")
    log.later(1000)
    assert (await log.create()).top == 0


async def test_a_mailbox_lives_as_long_as_the_mail_that_waits_longest(log: Log) -> None:
    for wait_ms in (100_000, 1000):
        await log.store.outbox.append_to_user("bob", tail("x"), wait_ms=wait_ms)
    assert await log.client.pttl(keys.mailbox("bob")) > 50_000


async def test_the_room_of_mail_that_waited_too_long_is_free_again(log: Log) -> None:
    outbox = log.store.outbox
    assert (await outbox.append_to_user("bob", tail("x" * 600_000), wait_ms=100))[0].status is PushStatus.WAITING
    assert (await outbox.append_to_user("bob", tail("y" * 300_000), wait_ms=90_000))[0].status is PushStatus.WAITING
    log.later(100)
    assert (await outbox.append_to_user("bob", tail("z" * 600_000), wait_ms=90_000))[0].status is PushStatus.WAITING
    assert (await outbox.append_to_user("bob", tail("z" * 300_000), wait_ms=90_000))[0].status is PushStatus.FULL


async def test_users_and_keys_are_told_apart_wherever_their_colons_are(log: Log) -> None:
    rest = next(str(n) for n in range(100_000) if keys.user_tag(f"u:{n}") == keys.user_tag("u"))
    await log.create("u")
    await log.create(f"u:{rest}")
    outbox = log.store.outbox
    assert (await outbox.append_to_user("u", tail("x"), dedupe_key=f"{rest}:k"))[0].status is PushStatus.QUEUED
    assert (await outbox.append_to_user(f"u:{rest}", tail("x"), dedupe_key="k"))[0].status is PushStatus.QUEUED


async def test_a_key_counts_only_when_its_message_was_taken(log: Log) -> None:
    sid = (await log.create(quota=Quota(entries=1))).sid
    await log.push(sid, "x")
    outbox = log.store.outbox
    assert (await outbox.append_to_user("bob", tail("y"), dedupe_key="k"))[0].status is PushStatus.FULL
    await outbox.ack([(sid, 1, 0)])
    assert (await outbox.append_to_user("bob", tail("y"), dedupe_key="k"))[0].status is PushStatus.QUEUED


async def _leave(log: Log, sid: str) -> None:
    await log.store.sessions.detach([(sid, log.generations[sid])])


async def _expire(log: Log, *sids: str) -> None:
    log.later(60_001)
    assert sorted((await log.store.sessions.sweep()).expired) == sorted(sids)


async def test_what_waits_for_a_user_outlives_the_session_that_the_user_has_left(log: Log) -> None:
    one = await log.create()
    await _leave(log, one.sid)
    sent = await log.store.outbox.append_to_user("bob", tail("m"), wait_ms=3_600_000)
    assert [result.status for result in sent] == [PushStatus.QUEUED]
    await log.store.outbox.append_to_user("bob", tail("not so important"))
    await _expire(log, one.sid)
    two = await log.create()
    assert await log.texts(two.sid) == ["m"]
    await log.store.sessions.close(two.sid)
    three = await log.create()
    assert await log.texts(three.sid) == ["m"], "nor was it acknowledged there"
    await log.store.outbox.ack([(three.sid, 1, 0)])
    await log.store.sessions.close(three.sid)
    assert await log.everything() == {}


async def test_what_waits_for_a_user_comes_with_a_new_session_beside_the_one_that_was_left(log: Log) -> None:
    one = await log.create()
    await _leave(log, one.sid)
    await log.store.outbox.append_to_user("bob", tail("m"), wait_ms=3_600_000)
    two = await log.create()
    assert await log.texts(two.sid) == ["m"]
    await log.store.outbox.ack([(two.sid, 1, 0)])
    await _expire(log, one.sid)
    assert await log.texts(two.sid) == []
    assert (await log.create()).top == 0, "it was delivered once"


async def test_the_notes_of_a_session_live_as_long_as_what_waits_longest(log: Log) -> None:
    """And no longer: the previous version does not delete them with the session."""
    session = await log.create()
    for wait_ms in (100_000, 1000):
        await log.store.outbox.append_to_user("bob", tail("x"), wait_ms=wait_ms)
    assert 50_000 < await log.client.pttl(keys.waiting(session.sid)) <= 100_000


async def test_what_one_session_has_acknowledged_waits_no_longer_in_others(log: Log) -> None:
    one, two = await log.create(), await log.create()
    for number in range(70):  # now and then, notes are tidied up
        log.later(1)  # each has a name of its own
        await log.store.outbox.append_to_user("bob", tail(f"m{number}"), wait_ms=3_600_000)
        await log.store.outbox.ack([(one.sid, number + 1, 0)])
    assert await log.client.hlen(keys.waiting(one.sid)) == 70 - 63, "all that was acknowledged at the 64th is gone"
    await log.store.sessions.close(one.sid)
    await _leave(log, two.sid)
    await _expire(log, two.sid)
    assert await log.everything() == {}
    assert (await log.create()).top == 0


async def test_what_a_session_leaves_goes_to_the_other_sessions_of_its_user(log: Log) -> None:
    one = await log.create()
    await log.store.outbox.append_to_user("bob", tail("m"), wait_ms=3_600_000)
    two = await log.create()
    assert two.top == 0, "the first has its client, who will acknowledge it"
    await log.store.sessions.close(one.sid)
    assert await log.texts(two.sid) == ["m"]
    log.later(3_600_001)
    await log.store.sessions.close(two.sid)
    assert (await log.create()).top == 0, "its time is over"


async def test_what_one_session_has_acknowledged_does_not_come_again_with_a_new_one(log: Log) -> None:
    one, two = await log.create(), await log.create()
    await _leave(log, one.sid)
    await log.store.outbox.append_to_user("bob", tail("m"), wait_ms=3_600_000)
    await log.store.outbox.ack([(two.sid, 1, 0)])
    assert (await log.create()).top == 0, "it was delivered to the second"
    await _leave(log, two.sid)
    assert (await log.create()).top == 0, "and still was when that one had left"


async def test_what_a_session_leaves_does_not_wait_in_one_without_a_client(log: Log) -> None:
    """Its user may be here in a session that began later."""
    one, two = await log.create(), await log.create()
    await log.store.outbox.append_to_user("bob", tail("m"), wait_ms=30_000)
    three = await log.create()
    await _leave(log, one.sid)
    await log.store.sessions.close(two.sid)
    assert await log.texts(three.sid) == ["m"]
    await log.store.outbox.ack([(three.sid, 1, 0)])
    await log.store.sessions.close(one.sid)
    assert await log.texts(three.sid) == []
    await log.store.sessions.close(three.sid)
    assert await log.everything() == {}


async def test_what_a_session_leaves_waits_in_one_that_its_client_left_if_there_is_no_other(log: Log) -> None:
    one, two = await log.create(), await log.create()
    await log.store.outbox.append_to_user("bob", tail("m"), wait_ms=3_600_000)
    await _leave(log, one.sid)
    await log.store.sessions.close(two.sid)
    assert await log.texts(one.sid) == ["m"], "once"
    three = await log.create()
    assert await log.texts(three.sid) == ["m"], "once"


async def test_sessions_without_a_client_give_way_first_the_oldest_of_them(log: Log) -> None:
    sids = []
    for _ in range(4):
        log.later(1)
        sids.append((await log.create(max_sessions=4)).sid)
    for sid in (sids[2], sids[1]):
        await _leave(log, sid)
    assert (await log.create(max_sessions=4)).replaced == (sids[1],)
    assert (await log.create(max_sessions=4)).replaced == (sids[2],)
    assert (await log.create(max_sessions=4)).replaced == (sids[0],), "then the one that was attached longest ago"


async def _sweep_twice(log: Log) -> None:
    """The second one ends what the first one found, a minute later."""
    await log.store.sessions.sweep()
    log.later(60_000)
    await log.store.sessions.sweep()


async def test_a_join_of_which_nothing_comes_leaves_nothing_behind(log: Log) -> None:
    """Where a group has members is written before the join; then the session is gone, or the call is lost."""
    one = await log.create("bob")
    await log.store.sessions.close(one.sid)
    before = set(await log.everything())
    assert await log.store.sessions.join(one.sid, "g") is False
    await _sweep_twice(log)
    assert set(await log.everything()) == before


async def test_a_group_is_not_forgotten_while_somebody_joins_it(log: Log) -> None:
    """Its last member has left, and a sweep has found that, as a new one comes."""
    one, two = await log.create("bob"), await log.create("bob")
    await log.store.sessions.join(one.sid, "g")
    await log.store.sessions.leave(one.sid, "g")
    await log.store.sessions.join(two.sid, "g")
    await log.store.sessions.partitions.forget_groups([("g", one.sid[:4])])
    await _sweep_twice(log)
    assert (await log.store.outbox.append_to_group("g", tail("x"))).queued == 1


async def test_joining_and_leaving_leaves_nothing_behind(log: Log) -> None:
    one, two = await log.create("bob"), await log.create("bob")
    before = set(await log.everything())
    for number in range(20):
        await log.store.sessions.join(one.sid, f"g{number}")
        await log.store.sessions.leave(one.sid, f"g{number}")
    await _sweep_twice(log)
    assert set(await log.everything()) == before
    await log.store.sessions.join(one.sid, "g")
    await log.store.sessions.join(two.sid, "g")
    await log.store.sessions.leave(one.sid, "g")
    assert (await log.store.outbox.append_to_group("g", tail("x"))).queued == 1, "the other one is still found"
