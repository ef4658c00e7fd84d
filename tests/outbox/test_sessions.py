"""create, attach, detach, close, show: who may resume, where a cursor fits, and that nothing is left behind."""

from __future__ import annotations

import pytest

from tests.outbox.support import AFTER, BEFORE, Ears, Log, text_of
from veredus.errors import CommandRefused, ConfigError
from veredus.model.delivery import NO_CURSOR, SECRET_GRACE, Cursor, LogState, PushStatus, Quota, judge_cursor
from veredus.wire import session_keys as keys
from veredus.wire.log_entries import Kick


async def test_a_cursor_is_valid_at_once(log: Log) -> None:
    created = await log.create()
    assert (created.generation, created.top, created.replaced) == (1, 0, ())
    attached = await log.attach(created.sid, Cursor(created.epoch, 0, 0))
    assert (attached.result, attached.reason, attached.base) == ("resumed", "", Cursor(created.epoch, 0, 0))
    assert (attached.generation, attached.top, attached.entries) == (2, 0, [])
    assert (await log.attach(created.sid, NO_CURSOR)).result == "resumed"


async def test_an_attach_acknowledges_the_cursor_and_brings_what_is_missing(log: Log) -> None:
    sid = (await log.create()).sid
    await log.push(sid, *"abcdef")
    cursor = await log.cursor(sid, 2)
    attached = await log.attach(sid, cursor, first=3)
    assert (attached.result, attached.base, attached.top) == ("resumed", cursor, 6)
    assert [(entry.seq, text_of(entry.tail)) for entry in attached.entries] == [(3, "c"), (4, "d"), (5, "e")]
    assert await log.texts(sid) == ["c", "d", "e", "f"]
    again = await log.attach(sid, cursor, max_bytes=1)  # at the floor the cursor still fits, by the floor's own time
    assert (again.result, [entry.seq for entry in again.entries]) == ("resumed", [3])


async def test_the_old_connection_is_kicked_and_can_do_no_harm(log: Log) -> None:
    created = await log.create()
    async with Ears(log.client, "n1") as old:
        await log.attach(created.sid, NO_CURSOR, node="n2")
        assert await old.messages(1) == [[Kick(created.sid, 1, "superseded")]]
    before = await log.everything()
    assert await log.store.sessions.detach([(created.sid, 1)]) == [False]
    assert await log.store.outbox.accept(created.sid, 1, log.now + 1, 1) == "superseded"
    assert await log.everything() == before
    tag = created.sid[:4]
    assert keys.attached(tag, "n1") not in before
    assert before[keys.attached(tag, "n2")].value == {created.sid}
    async with Ears(log.client, "n2") as same:  # also on the same node: another connection has it now
        await log.attach(created.sid, NO_CURSOR, node="n2")
        assert await same.messages(1) == [[Kick(created.sid, 2, "superseded")]]


async def test_secrets_change_at_each_attach_and_the_last_one_counts_for_the_ttl(log: Log) -> None:
    """The welcome that carries the new secret may be lost, so the one presented stays good for a while."""
    sid = (await log.create(secret_hash="one")).sid

    async def resume(secret: str, following: str) -> tuple[str, str]:
        attached = await log.attach(sid, NO_CURSOR, secret_hash=secret, next_secret_hash=following)
        return attached.result, attached.reason

    assert await resume("one", "two") == ("resumed", "")
    assert await resume("one", "three") == ("resumed", "")  # the welcome with `two` never arrived
    assert await resume("none", "four") == ("forbidden", "secret")
    log.later(59_000)
    assert await resume("one", "four") == ("resumed", "")
    assert await resume("four", "five") == ("resumed", "")
    assert await resume("three", "six") == ("forbidden", "secret")  # the client has been seen with a newer one
    log.later(60_000)
    before = await log.everything()
    assert await resume("four", "six") == ("forbidden", "secret")
    assert await log.everything() == before
    assert await resume("five", "six") == ("resumed", "")


async def test_a_hello_that_is_executed_late_does_not_take_the_session_from_its_client(log: Log) -> None:
    """Two hellos with the same secret: the client was welcomed by one of them, whichever came first."""
    sid = (await log.create(secret_hash="one")).sid

    async def resume(secret: str, following: str) -> str:
        return (await log.attach(sid, NO_CURSOR, secret_hash=secret, next_secret_hash=following)).result

    for following in ("welcomed", "late", "later"):
        assert await resume("one", following) == "resumed"
    assert await resume("welcomed", "two") == "resumed"
    assert await resume("two", "three") == "resumed"
    assert await resume("late", "four") == "forbidden"


async def test_a_hello_that_is_executed_late_with_an_old_cursor_leaves_the_log_as_it_is(log: Log) -> None:
    """Its client was welcomed by another hello and has acknowledged since: it can go on where it is."""
    created = await log.create(secret_hash="one")
    sid, old = created.sid, Cursor(created.epoch, 0, 0)
    await log.push(sid, *"abc")
    await log.attach(sid, old, secret_hash="one", next_secret_hash="welcomed")
    second = await log.cursor(sid, 2)
    await log.store.outbox.ack([(sid, 2, 0)])
    late = await log.attach(sid, old, secret_hash="one", next_secret_hash="late")
    assert (late.result, late.reason, late.base) == ("reset", "truncated", second)
    attached = await log.attach(sid, second, secret_hash="welcomed", next_secret_hash="two")
    assert (attached.result, attached.reason, attached.base) == ("resumed", "", second)
    assert [text_of(entry.tail) for entry in attached.entries] == ["c"]


async def test_another_user_with_the_right_secret_is_refused(log: Log) -> None:
    """A session belongs to the user who made it."""
    sid = (await log.create()).sid
    before = await log.everything()
    attached = await log.attach(sid, NO_CURSOR, user="eve")
    assert (attached.result, attached.reason) == ("forbidden", "user")
    assert await log.everything() == before


@pytest.mark.parametrize("sid", ["", "x", "p0a3", "p0a3-" + "x" * 100, "pzzz-abc", "p0a3-}:x", "ü0a3-abc"])
async def test_what_is_no_session_is_unknown_to_a_resume(log: Log, sid: str) -> None:
    attached = await log.attach(sid, NO_CURSOR)
    assert (attached.result, attached.reason) == ("unknown", "unknown")
    assert await log.everything() == {}


async def test_resets_say_why_and_deliver_what_is_there_in_a_new_epoch(log: Log) -> None:
    """But for a cursor that is too old: the log is the one that it was."""
    created = await log.create()
    sid = created.sid
    await log.push(sid, *"abcd")
    await log.store.outbox.ack([(sid, 2, 0)])
    third = await log.cursor(sid, 3)
    epoch = created.epoch
    for cursor, reason in [
        (third._replace(epoch="00000000"), "epoch"),
        (Cursor("*", 5, third.ts), "ahead"),
        (Cursor("*", 1, third.ts), "truncated"),
        (Cursor("*", 3, third.ts + 1), "fork"),
        (Cursor("*", 2, 12345), "fork"),
        (NO_CURSOR, "truncated"),
    ]:
        if cursor.epoch == "*":
            cursor = cursor._replace(epoch=epoch)
        state = LogState(epoch, 4, 2, (await log.cursor(sid, 2)).ts)
        assert judge_cursor(state, cursor, third.ts if cursor.seq == 3 else None)[:2] == ("reset", reason)
        attached = await log.attach(sid, cursor)
        assert (attached.result, attached.reason) == ("reset", reason)
        assert attached.epoch
        assert (attached.epoch == epoch) == (reason == "truncated")
        assert attached.base == await log.cursor(sid, 2)
        assert [text_of(entry.tail) for entry in attached.entries] == ["c", "d"]
        epoch = attached.epoch


async def test_a_failover_that_lost_its_tail_is_found(log: Log) -> None:
    """The client is at 5; the new master knew only 3 and two others were numbered 4 and 5 since: same epoch, same
    top."""
    sid = (await log.create()).sid
    await log.push(sid, "a", "b", "c")
    copy = {name: await log.client.dump(name) for name in (keys.meta(sid), keys.outbox(sid))}
    await log.push(sid, "d", "e")
    cursor = await log.cursor(sid, 5)
    for name, data in copy.items():
        await log.client.restore(name, 0, data, replace=True)
    log.later(10)
    await log.push(sid, "other d", "other e")
    attached = await log.attach(sid, cursor)
    assert (attached.result, attached.reason) == ("reset", "fork")
    assert [text_of(entry.tail) for entry in attached.entries] == ["a", "b", "c", "other d", "other e"]


async def test_a_log_whose_list_was_lost_is_told_not_papered_over(log: Log) -> None:
    sid = (await log.create()).sid
    await log.push(sid, "a", "b")
    await log.client.delete(keys.outbox(sid))
    attached = await log.attach(sid, NO_CURSOR)
    assert (attached.result, attached.reason, attached.base.seq, attached.top) == ("reset", "truncated", 2, 2)
    assert (await log.push(sid, "c"))[0].seq == 3
    assert await log.texts(sid) == ["c"]


async def test_a_lost_list_never_gives_a_message_another_number(log: Log) -> None:
    created = await log.create()
    sid = created.sid
    await log.push(sid, *"abcde")
    await log.store.outbox.ack([(sid, 2, 0)])
    cursor = await log.cursor(sid, 3)
    await log.client.delete(keys.outbox(sid))
    assert [r.seq for r in await log.push(sid, "f", "g")] == [6, 7]
    assert [(entry.seq, text_of(entry.tail)) for entry in await log.entries(sid)] == [(6, "f"), (7, "g")]
    meta = await log.meta(sid)
    assert meta["e"] != created.epoch
    assert int(meta["cb"]) - int(meta["cf"]) == sum(24 + len(entry.tail) for entry in await log.entries(sid))
    attached = await log.attach(sid, cursor)
    assert (attached.result, attached.reason, attached.base.seq) == ("reset", "epoch", 5)
    assert [text_of(entry.tail) for entry in attached.entries] == ["f", "g"]


async def test_what_a_policy_dropped_is_a_gap_not_a_reset(log: Log) -> None:
    sid = (await log.create(quota=Quota(entries=2))).sid
    await log.push(sid, "a")
    cursor = await log.cursor(sid, 1)
    await log.push(sid, *"bcde", policy="drop_oldest")
    attached = await log.attach(sid, cursor)
    assert (attached.result, attached.gap) == ("resumed", (2, 3))
    assert attached.base == await log.cursor(sid, 3)
    assert [text_of(entry.tail) for entry in attached.entries] == ["d", "e"]
    assert (await log.attach(sid, attached.base)).gap is None


async def test_a_session_waits_for_its_client_and_then_ends(log: Log) -> None:
    sid = (await log.create(ttl_ms=1000)).sid
    assert await log.store.sessions.detach([(sid, 1)]) == [True]
    assert await log.store.sessions.detach([(sid, 1)]) == [False]
    log.later(999)
    await log.push(sid, "for later")
    attached = await log.attach(sid, NO_CURSOR)
    assert (attached.result, attached.generation) == ("resumed", 2)
    log.later(10_000)  # an attached session does not end by time
    assert (await log.store.sessions.sweep()).expired == []
    assert (await log.push(sid, "x"))[0].status is PushStatus.QUEUED
    await log.store.sessions.detach([(sid, 2)])
    log.later(1000)
    assert (await log.attach(sid, NO_CURSOR)).reason == "expired"
    swept = await log.store.sessions.sweep()
    assert swept.expired == [sid]
    assert await log.everything() == {}
    assert (await log.attach(sid, NO_CURSOR)).reason == "unknown"


async def test_close_leaves_nothing_behind(log: Log) -> None:
    """Whatever a session had ends with it."""
    sid = (await log.create(groups=["g", "h"])).sid
    await log.push(sid, "a")
    await log.accept(sid, 1)
    await log.bind(sid, 1, BEFORE, "b")
    await log.bind(sid, 7, AFTER, "ahead of its request")
    await log.accept(sid, 2)
    await log.respond(sid, 2)
    async with Ears(log.client, "n1") as ears:
        assert await log.store.sessions.close(sid, "enough") is True
        assert await ears.messages(1) == [[Kick(sid, 1, "enough")]]
    places = {keys.group_partitions("g"), keys.group_partitions("h"), keys.emptied(sid[:4])}
    assert set(await log.everything()) == places  # only where the groups were, which two sweeps forget
    await log.store.sessions.sweep()
    log.later(60_000)
    await log.store.sessions.sweep()
    assert await log.everything() == {}
    assert await log.store.sessions.close(sid) is False
    assert (await log.push(sid, "x"))[0].status is PushStatus.GONE


async def test_too_many_sessions_of_a_user(log: Log) -> None:
    sids = []
    for _ in range(3):
        sids.append((await log.create(max_sessions=3)).sid)
        log.later(10)
    await log.attach(sids[0], NO_CURSOR)  # now the second is the one attached longest ago
    before = await log.everything()
    refused = await log.create(max_sessions=3, when_full="refuse")
    assert refused.sid == ""
    assert await log.everything() == before
    log.later(10)
    async with Ears(log.client, "n1") as ears:
        created = await log.create(max_sessions=3)
        assert created.replaced == (sids[1],)
        assert await ears.messages(1) == [[Kick(sids[1], 1, "replaced")]]
    rows = await log.store.sessions.sessions_of("bob")
    assert [row.sid for row in rows] == [sids[2], sids[0], created.sid]
    with pytest.raises(ConfigError, match="when_full"):
        await log.create(when_full="oldes")
    with pytest.raises(CommandRefused, match="exists already"):
        await log.create(sid=created.sid)


async def test_sessions_that_ended_do_not_count(log: Log) -> None:
    """An index never names a session that has ended."""
    old = await log.create(ttl_ms=1000)
    await log.store.sessions.detach([(old.sid, 1)])
    log.later(2000)
    assert await log.store.sessions.sessions_of("bob") == []
    created = await log.create(max_sessions=1, when_full="refuse")
    assert created.sid
    assert [row.sid for row in await log.store.sessions.sessions_of("bob")] == [created.sid]
    assert not [name for name in await log.everything() if old.sid in name]


async def test_orphans_of_dead_nodes_are_detached_and_the_dead_buried(log: Log) -> None:
    nodes = log.store.nodes
    await nodes.beat("n1", {"ws": "here"})
    await nodes.beat("n2")
    mine, other = await log.create(), await log.create("eve", node="n2")
    assert (await nodes.nodes())["n1"].info == {"ws": "here"}
    assert (await log.store.sessions.sweep()).orphans == []
    await nodes.leave("n1")
    assert await nodes.bury("n2") is False
    swept = await log.store.sessions.sweep()
    assert swept.orphans == [mine.sid]
    assert set(await nodes.nodes()) == {"n2"}
    rows = {row.sid: row for row in await log.store.sessions.show([mine.sid, other.sid])}
    assert (rows[mine.sid].state, rows[mine.sid].expires_ms) == ("detached", log.now + 60_000)
    assert rows[other.sid].state == "attached"
    assert (await log.attach(mine.sid, NO_CURSOR, node="n2")).result == "resumed"


async def test_a_session_whose_answer_was_lost_does_not_stay_attached_for_ever(log: Log) -> None:
    mine, lost, fresh = await log.create(), await log.create("eve"), await log.create("joe")
    other = await log.create("ann", node="n2")
    sessions = log.store.sessions
    assert await sessions.release_strays("n1", {mine.sid, fresh.sid}) == []
    assert await sessions.release_strays("n1", {mine.sid}) == [lost.sid]  # `fresh` may just be on its way
    assert await sessions.release_strays("n1", {mine.sid, fresh.sid}) == []
    states = {row.sid: row.state for row in await sessions.show([mine.sid, lost.sid, fresh.sid, other.sid])}
    assert [sid for sid, state in states.items() if state == "detached"] == [lost.sid]


async def test_a_node_that_stood_still_is_told_that_it_was_taken_for_dead(log: Log) -> None:
    nodes = log.store.nodes
    assert await nodes.beat("n1") is True
    assert await nodes.beat("n1") is True
    created = await log.create()
    await log.client.hset(keys.NODES, "n1", f"{log.now - 15_001} {{}}")
    assert (await log.store.sessions.sweep()).orphans == [created.sid]
    (excerpt,) = await log.store.outbox.read([(created.sid, 1, 0, 0)])
    assert excerpt is not None
    assert (excerpt.node, excerpt.generation) == ("", 1)
    assert await nodes.beat("n1") is False
    assert await nodes.beat("n1") is True


async def test_listing_walks_through_all(log: Log) -> None:
    sids = sorted([(await log.create(f"u{i}", groups=["g"])).sid for i in range(12)])
    found: list[str] = []
    while rows := await log.store.sessions.listing(after=found[-1] if found else "", limit=5):
        found += [row.sid for row in rows]
        if len(rows) < 5:
            break
    assert found == sids
    assert await log.store.sessions.count() == 12
    await log.push(sids[0], "abc")
    (row,) = await log.store.sessions.show([sids[0], "p000-nobody"])
    assert (row.pending, row.top, row.floor, row.groups, row.node, row.connection) == (1, 1, 0, ("g",), "n1", "c1")


async def test_the_secret_presented_stays_good_for_its_grace_though_the_session_ends_sooner(log: Log) -> None:
    sid = (await log.create(secret_hash="one", ttl_ms=1000)).sid
    await log.attach(sid, NO_CURSOR, secret_hash="one", next_secret_hash="two")
    log.later(int(SECRET_GRACE * 1000) - 1)
    assert (await log.attach(sid, NO_CURSOR, secret_hash="one", next_secret_hash="two")).result == "resumed"
    log.later(int(SECRET_GRACE * 1000))
    assert (await log.attach(sid, NO_CURSOR, secret_hash="one", next_secret_hash="two")).result == "forbidden"


async def test_an_attach_puts_a_session_back_on_a_list_that_was_lost(log: Log) -> None:
    sid = (await log.create()).sid
    await log.client.delete(keys.sessions(sid[:4]))
    assert await log.store.sessions.count() == 0
    await log.attach(sid, NO_CURSOR)
    assert [row.sid for row in await log.store.sessions.listing()] == [sid]


async def test_an_attach_forgets_answers_that_the_client_has_seen_and_names_only_real_requests(log: Log) -> None:
    sid = (await log.create()).sid
    for rid in (1, 2, 3):
        await log.accept(sid, rid)
    await log.respond(sid, 1)
    await log.respond(sid, 3)
    await log.bind(sid, 9, BEFORE, "ahead of its request")
    attached = await log.attach(sid, NO_CURSOR, rid_floor=2)
    assert sorted(attached.open_requests) == [(2, "open"), (3, "done")]
    assert await log.accept(sid, 1) == "done"
    assert (await log.meta(sid))["rf"] == "2"


async def test_a_floor_of_answers_only_rises_and_never_forgets_an_open_request(log: Log) -> None:
    sid = (await log.create()).sid
    await log.accept(sid, 1)
    await log.store.outbox.ack([(sid, 0, 5)])
    await log.store.outbox.ack([(sid, 0, 3)])
    assert (await log.meta(sid))["rf"] == "5"
    assert await log.accept(sid, 1) == "open"
    assert await log.accept(sid, 4) == "done"


async def test_what_is_left_of_a_damaged_log_counts_for_nothing(log: Log) -> None:
    """Neither its entries nor their bytes: else the session would be full for ever."""
    sid = (await log.create()).sid
    await log.push(sid, "a", "b", "c")
    await log.client.rpop(keys.outbox(sid))
    assert (await log.attach(sid, NO_CURSOR)).reason == "truncated"
    meta = await log.meta(sid)
    assert (meta["f"], meta["cf"], meta["ft"]) == (meta["s"], meta["cb"], meta["lt"])
    assert keys.outbox(sid) not in await log.everything()


async def test_an_ack_of_a_log_whose_list_was_lost_frees_its_bytes(log: Log) -> None:
    sid = (await log.create()).sid
    await log.push(sid, "a", "b", "c")
    await log.client.delete(keys.outbox(sid))
    await log.store.outbox.ack([(sid, 2, 0)])
    meta = await log.meta(sid)
    assert (meta["f"], meta["ft"], meta["cf"]) == ("2", "0", meta["cb"])


async def test_a_lower_number_of_sessions_replaces_as_many_as_are_too_many(log: Log) -> None:
    sids = []
    for _ in range(4):
        sids.append((await log.create(max_sessions=9)).sid)
        log.later(10)
    created = await log.create(max_sessions=2)
    assert created.replaced == tuple(sids[:3])
    assert [row.sid for row in await log.store.sessions.sessions_of("bob")] == [sids[3], created.sid]


async def test_a_new_session_has_nothing_of_one_that_was_evicted_in_part(log: Log) -> None:
    sid = (await log.create("", groups=["g"])).sid
    await log.push(sid, "old")
    await log.accept(sid, 1)
    await log.client.delete(keys.meta(sid))
    await log.create("", sid=sid)
    assert await log.texts(sid) == []
    assert not {keys.requests(sid), keys.session_groups(sid)} & set(await log.everything())


async def test_a_session_that_left_a_group_does_not_name_it(log: Log) -> None:
    sid = (await log.create(groups=["g", "h"])).sid
    await log.store.sessions.leave(sid, "g")
    assert await log.client.smembers(keys.session_groups(sid)) == {b"h"}


async def test_a_session_that_has_moved_on_is_no_orphan_of_the_node_it_left(log: Log) -> None:
    await log.store.nodes.beat("n2")
    await log.store.nodes.beat("dead")
    sid = (await log.create(node="n2")).sid
    await log.client.sadd(keys.attached(sid[:4], "dead"), sid)
    await log.store.nodes.leave("dead")
    assert (await log.store.sessions.sweep()).orphans == []
    (row,) = await log.store.sessions.show([sid])
    assert row.state == "attached"
    assert keys.attached(sid[:4], "dead") not in await log.everything()


async def test_a_dead_node_is_buried_only_when_all_its_sessions_are_detached(log: Log) -> None:
    await log.store.nodes.beat("n1")
    sids = {(await log.create()).sid for _ in range(3)}  # of one user: all in one partition
    await log.store.nodes.leave("n1")
    for left in (2, 1, 0):
        swept = await log.store.sessions.sweep(limit=1)
        sids -= set(swept.orphans)
        assert len(sids) == left
        assert ("n1" in await log.store.nodes.nodes()) == (left > 0)


async def test_a_deadline_of_a_request_that_was_answered_is_struck_off(log: Log) -> None:
    sid = (await log.create()).sid
    await log.accept(sid, 1)
    await log.respond(sid, 1)
    await log.client.zadd(keys.deadlines(sid[:4]), {f"{sid}.1": 1})
    assert (await log.store.sessions.sweep()).due == []
    assert keys.deadlines(sid[:4]) not in await log.everything()


async def test_a_node_that_nobody_knows_leaves_no_record(log: Log) -> None:
    await log.store.nodes.leave("stranger")
    assert await log.everything() == {}


@pytest.mark.parametrize("at_once", [1, 3, 32])
async def test_every_page_of_sessions_is_full_but_the_last(
    log: Log, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """However many partitions are asked at once, and though ended sessions lie between."""
    monkeypatch.setattr("veredus.store.sessions.session_reader.LISTED_PARTITIONS", at_once)
    sids = sorted([(await log.create(f"u{number % 9}")).sid for number in range(12)])
    for ended in (sids.pop(7), sids.pop(3)):
        await log.client.delete(keys.meta(ended))
    for limit in range(1, 13):
        left, after = sids, ""
        while True:
            page = [row.sid for row in await log.store.sessions.listing(after=after, limit=limit)]
            assert page == left[:limit]
            left = left[limit:]
            if len(page) < limit:
                break
            after = page[-1]
        assert left == []
