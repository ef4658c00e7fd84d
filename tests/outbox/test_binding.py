"""bind, accept, respond, sweep: befores, response, afters in one run; every row of the table of what can happen."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.outbox.support import AFTER, BEFORE, Ears, Log, tail, text_of
from tests.support.servers import VALKEY_ONLY
from veredus.model.delivery import MAX_REQUEST_RECORDS, NO_CURSOR, PushStatus, Quota
from veredus.model.frames import Kind
from veredus.wire import session_keys as keys
from veredus.wire.frames import decode_stored
from veredus.wire.log_entries import Hint

NEW_OR_USED = pytest.mark.parametrize("is_used", [False, True], ids=["new", "used"])
"""A session begins empty; so is one that has acknowledged everything, whatever its numbers are by then."""


async def test_bound_while_it_runs_and_given_with_the_response(log: Log) -> None:
    sid = (await log.create()).sid
    assert await log.accept(sid, 123) == "new"
    assert await log.bind(sid, 123, AFTER, "a1") == (PushStatus.HELD, 0, sid)
    assert await log.bind(sid, 123, BEFORE, "b1") == (PushStatus.HELD, 0, sid)
    await log.push(sid, "in between")
    await log.bind(sid, 123, BEFORE, "b2")
    responded = await log.respond(sid, 123, befores=[tail("b3")], afters=[tail("a2")])
    assert responded == ("sent", 5, 2, 7, 0)
    assert await log.texts(sid) == ["in between", "b1", "b2", "b3", "response", "a1", "a2"]


@pytest.mark.parametrize("accepted_first", [True, False])
async def test_bound_ahead_of_its_request(log: Log, accepted_first: bool) -> None:
    """Notifies bound to request 123, then request 123."""
    sid = (await log.create()).sid
    if accepted_first:
        await log.accept(sid, 123)
    assert (await log.bind(sid, 123, BEFORE, "before")).status is PushStatus.HELD
    assert (await log.bind(sid, 123, AFTER, "after")).status is PushStatus.HELD
    if not accepted_first:
        assert await log.accept(sid, 123) == "new"
    assert keys.early_binds(sid[:4]) not in await log.everything()
    log.later(29_000)
    assert (await log.store.sessions.sweep()).flushed == 0
    await log.respond(sid, 123)
    assert await log.texts(sid) == ["before", "response", "after"]


async def test_after_a_response_nothing_is_left_but_its_record(log: Log) -> None:
    sid = (await log.create()).sid
    before = await log.everything()
    await log.accept(sid, 1)
    await log.bind(sid, 1, BEFORE, "b")
    await log.respond(sid, 1)
    after = await log.everything()
    assert set(after) - set(before) == {keys.outbox(sid), keys.requests(sid)}
    assert after[keys.requests(sid)].value == {"1": "D:2"}
    meta = await log.meta(sid)
    assert (meta["op"], meta["hb"], meta["hy"]) == ("0", "0", "0")
    await log.store.outbox.ack([(sid, 2, 1)])
    assert keys.requests(sid) not in await log.everything()
    assert await log.accept(sid, 1) == "done"


async def test_one_terminal_response_per_request(log: Log) -> None:
    sid = (await log.create()).sid
    await log.accept(sid, 1)
    answers = await asyncio.gather(*[log.respond(sid, 1, f"r{i}") for i in range(10)])
    assert sorted(answer.status for answer in answers) == ["duplicate"] * 9 + ["sent"]
    assert {answer.seq for answer in answers} == {1}
    assert len(await log.texts(sid)) == 1
    await log.store.outbox.ack([(sid, 1, 1)])
    assert (await log.respond(sid, 1)).status == "duplicate"
    assert (await log.respond("p000-nobody", 1)).status == "gone"


async def test_a_repeated_request_is_known(log: Log) -> None:
    sid = (await log.create()).sid
    assert [await log.accept(sid, 1), await log.accept(sid, 1)] == ["new", "open"]
    await log.respond(sid, 1)
    assert await log.accept(sid, 1) == "done"
    for rid in range(2, 34):
        assert await log.accept(sid, rid) == "new"
    before = await log.everything()
    assert await log.accept(sid, 34) == "full"
    assert await log.everything() == before
    attached = await log.attach(sid, NO_CURSOR)
    assert sorted(attached.open_requests) == [(1, "done"), *[(rid, "open") for rid in range(2, 34)]]


async def test_bound_after_the_response_is_there(log: Log) -> None:
    sid = (await log.create()).sid
    await log.accept(sid, 1)
    await log.respond(sid, 1)
    assert await log.bind(sid, 1, BEFORE, "late") == (PushStatus.LATE, 2, sid)
    assert await log.bind(sid, 1, AFTER, "after") == (PushStatus.QUEUED, 3, sid)
    before = await log.everything()
    assert await log.bind(sid, 1, BEFORE, "refused", late="reject") == (PushStatus.TOO_LATE, 0, sid)
    assert await log.everything() == before
    kinds = [decode_stored(entry.tail).kind for entry in await log.entries(sid)]
    assert kinds == [Kind.RESPONSE, Kind.LATE, Kind.NOTIFY]
    assert await log.texts(sid) == ["response", "late", "after"]


async def test_when_the_deadline_passes_the_client_is_told_and_held_ones_are_sent_or_dropped(log: Log) -> None:
    sid = (await log.create()).sid
    await log.accept(sid, 1, ms=1000)
    await log.bind(sid, 1, BEFORE, "b")
    await log.bind(sid, 1, BEFORE, "b dropped", on_fail="drop")
    await log.bind(sid, 1, AFTER, "a dropped", on_fail="drop")
    await log.bind(sid, 1, AFTER, "a")
    log.later(999)
    assert (await log.store.sessions.sweep()).due == []
    log.later(1)
    swept = await log.store.sessions.sweep()
    assert swept.due == [(sid, 1)]
    assert (await log.store.sessions.sweep()).due == [(sid, 1)]  # until somebody has answered
    assert await log.store.outbox.expire(swept.due) == 1
    assert await log.store.outbox.expire(swept.due) == 0
    messages = [decode_stored(entry.tail) for entry in await log.entries(sid)]
    assert [message.body for message in messages] == [b"b", b"", b"a"]
    assert (messages[1].kind, messages[1].rid, messages[1].code) == (Kind.RESPONSE, 1, 408)
    assert messages[1].metadata == {"dropped": "2"}
    before = await log.everything()
    assert await log.respond(sid, 1, "too late") == ("duplicate", 2, 0, 0, 0)
    assert await log.everything() == before
    assert (await log.store.sessions.sweep()).due == []


async def test_a_request_that_never_comes_releases_what_was_bound_to_it(log: Log) -> None:
    """Nothing is kept for ever, nothing is dropped without a word."""
    sid = (await log.create()).sid
    before = await log.everything()
    await log.bind(sid, 5, AFTER, "a")
    await log.bind(sid, 5, BEFORE, "b")
    await log.bind(sid, 5, BEFORE, "rather not", late="reject")
    log.later(30_000)
    swept = await log.store.sessions.sweep()
    assert (swept.flushed, swept.dropped) == (2, 1)
    assert await log.texts(sid) == ["b", "a"]
    assert {decode_stored(entry.tail).kind for entry in await log.entries(sid)} == {Kind.LATE}
    assert set(await log.everything()) == {*before, keys.outbox(sid)}
    assert await log.accept(sid, 5) == "new"
    await log.respond(sid, 5)
    assert (await log.texts(sid))[-1] == "response"


async def test_an_answer_before_its_request_releases_what_was_bound(log: Log) -> None:
    """As of a gateway's own handler: its request was never stored."""
    sid = (await log.create()).sid
    await log.bind(sid, 5, BEFORE, "b")
    await log.bind(sid, 5, AFTER, "a")
    assert any(key.endswith(":bd") for key in await log.everything())
    await log.respond(sid, 5)
    assert await log.texts(sid) == ["b", "response", "a"]
    assert not any(key.endswith(":bd") for key in await log.everything())


@NEW_OR_USED
async def test_what_a_missing_request_releases_goes_beyond_the_quota_by_so_much_and_no_more(
    log: Log, is_used: bool
) -> None:
    """By 64 entries and as many KiB, as with a response; the rest is dropped, and counted."""
    sid = (await (log.create_used if is_used else log.create)(quota=Quota(entries=2))).sid
    await log.push(sid, "p1", "p2")
    for rid, number in ((5, 64), (6, 10)):
        for i in range(number):
            assert (await log.bind(sid, rid, BEFORE, f"{rid} {i}")).status is PushStatus.HELD
    log.later(30_000)
    swept = await log.store.sessions.sweep()
    assert (swept.flushed, swept.dropped) == (64, 10)
    assert len(await log.texts(sid)) == 2 + 64
    meta = await log.meta(sid)
    assert (meta["hb"], meta["hy"]) == ("0", "0")


@NEW_OR_USED
async def test_what_a_missing_request_releases_goes_beyond_the_quota_of_bytes_by_so_much_and_no_more(
    log: Log, is_used: bool
) -> None:
    sid = (await (log.create_used if is_used else log.create)(quota=Quota(bytes=200_000))).sid
    await log.push(sid, "x" * 190_000)
    for text in ("y" * 60_000, "z" * 60_000, "small"):
        assert (await log.bind(sid, 5, BEFORE, text)).status is PushStatus.HELD
    log.later(30_000)
    swept = await log.store.sessions.sweep()
    assert (swept.flushed, swept.dropped) == (2, 1)
    assert [text[0] for text in await log.texts(sid)] == ["x", "y", "s"]


async def test_what_is_bound_to_a_refused_request_waits_for_one_with_its_number(log: Log) -> None:
    sid = (await log.create()).sid
    assert await log.store.outbox.accept(sid, 5, log.now + 60_000, 1, arrival=1) == "new"
    await log.bind(sid, 5, BEFORE, "b")
    assert await log.store.outbox.refuse(sid, 5, 1, 1) == "refused"
    assert await log.texts(sid) == []
    assert await log.accept(sid, 5) == "new"
    await log.respond(sid, 5)
    assert await log.texts(sid) == ["b", "response"]
    assert keys.early_binds(sid[:4]) not in await log.everything()
    assert await log.store.outbox.refuse(sid, 5, 1, 1) == "answered"


async def test_what_is_bound_to_a_refused_request_that_does_not_come_again_is_sent_as_late(log: Log) -> None:
    sid = (await log.create()).sid
    await log.store.outbox.accept(sid, 5, log.now + 60_000, 1, arrival=1)
    await log.bind(sid, 5, BEFORE, "b")
    await log.store.outbox.refuse(sid, 5, 1, 1)
    log.later(30_000)
    swept = await log.store.sessions.sweep()
    assert (swept.flushed, swept.due) == (1, [])
    assert await log.texts(sid) == ["b"]


async def test_reconnects_and_other_nodes_change_nothing_for_what_is_bound(log: Log) -> None:
    """Binds survive a reconnect."""
    sid = (await log.create()).sid
    await log.accept(sid, 1)
    await log.bind(sid, 1, BEFORE, "b")
    await log.store.sessions.detach([(sid, 1)])
    await log.bind(sid, 1, AFTER, "a")
    await log.respond(sid, 1)
    attached = await log.attach(sid, NO_CURSOR)
    assert [text_of(entry.tail) for entry in attached.entries] == ["b", "response", "a"]
    await log.store.sessions.close(sid)
    assert (await log.bind(sid, 1, BEFORE, "x")).status is PushStatus.GONE


async def test_limits_of_what_may_be_bound(log: Log) -> None:
    sid = (await log.create()).sid
    for i in range(64):
        assert (await log.bind(sid, 1, BEFORE if i % 2 else AFTER, "x")).status is PushStatus.HELD
    before = await log.everything()
    assert (await log.bind(sid, 1, BEFORE, "x", dedupe_key="k")).status is PushStatus.FULL
    assert await log.everything() == before
    for rid, _ in itertools.product((2, 3, 4), range(64)):
        assert (await log.bind(sid, rid, AFTER, "x")).status is PushStatus.HELD
    assert (await log.bind(sid, 5, AFTER, "x")).status is PushStatus.FULL
    other = (await log.create("eve", quota=Quota(bytes=2000))).sid
    assert (await log.bind(other, 1, AFTER, "x" * 1500)).status is PushStatus.HELD
    assert (await log.bind(other, 2, AFTER, "x" * 1500)).status is PushStatus.FULL


async def test_a_bound_one_has_its_key_and_its_ttl(log: Log) -> None:
    sid = (await log.create()).sid
    await log.accept(sid, 1)
    assert (await log.bind(sid, 1, BEFORE, "b", dedupe_key="k", expiry="+5000")).status is PushStatus.HELD
    assert (await log.bind(sid, 1, BEFORE, "b", dedupe_key="k")).status is PushStatus.DUPLICATE
    await log.respond(sid, 1)
    assert [entry.expiry for entry in await log.entries(sid)] == [log.now + 5000, 0]


@NEW_OR_USED
async def test_a_response_finds_room_and_what_is_bound_up_to_the_hard_cap(log: Log, is_used: bool) -> None:
    sid = (await (log.create_used if is_used else log.create)(quota=Quota(entries=2))).sid
    await log.push(sid, "p1", "p2")
    await log.accept(sid, 1)
    for i in range(40):
        await log.bind(sid, 1, BEFORE, f"b{i}")
    responded = await log.respond(sid, 1, befores=[tail(f"c{i}") for i in range(30)], afters=[tail("a")])
    # 2 + 64 entries in all, of which 2 are taken and one is the response: the oldest 8 of 71 had no room.
    assert responded.dropped == 8
    texts = await log.texts(sid)
    assert texts == ["p1", "p2", *[f"b{i}" for i in range(8, 40)], *[f"c{i}" for i in range(30)], "response", "a"]
    response = next(m for e in await log.entries(sid) if (m := decode_stored(e.tail)).kind is Kind.RESPONSE)
    assert response.metadata == {"dropped": "8"}
    await log.accept(sid, 2)
    assert (await log.respond(sid, 2, afters=[tail("x")])).dropped == 1  # the response itself is always kept
    assert (await log.texts(sid))[-1] == "response"


@NEW_OR_USED
@pytest.mark.parametrize(("missing", "dropped"), [(0, 0), (1, 1)])
async def test_what_is_bound_finds_room_to_the_last_byte(log: Log, is_used: bool, missing: int, dropped: int) -> None:
    befores, response = [tail("b" * 50_000), tail("c" * 50_000)], tail("r" * 1000, kind=Kind.RESPONSE, rid=1)
    quota = sum(len(one) + 24 for one in befores) + len(response) - 64 * 1024
    sid = (await (log.create_used if is_used else log.create)(quota=Quota(bytes=quota - missing))).sid
    await log.accept(sid, 1)
    responded = await log.store.outbox.respond(sid, 1, response, befores)
    assert responded.dropped == dropped
    assert [text[0] for text in await log.texts(sid)] == ["b", "c", "r"][dropped:]


async def test_one_message_tells_the_whole_run(log: Log) -> None:
    sid = (await log.create()).sid
    await log.accept(sid, 1)
    await log.bind(sid, 1, BEFORE, "b")
    async with Ears(log.client, "n1") as ears:
        await log.respond(sid, 1)
        ((hint,),) = await ears.messages(1)
        assert isinstance(hint, Hint)
        assert [text_of(entry.tail) for entry in hint.entries] == ["b", "response"]
        await log.bind(sid, 1, BEFORE, "late")
        ((hint,),) = await ears.messages(1)
        assert isinstance(hint, Hint)
        assert (hint.first, hint.count) == (3, 1)
        assert await ears.silent()


@VALKEY_ONLY
async def test_nothing_comes_between_a_run_whoever_pushes_at_the_same_time(log: Log) -> None:
    sid = (await log.create(quota=Quota(entries=10_000))).sid

    async def request(rid: int) -> None:
        await log.accept(sid, rid)
        await log.bind(sid, rid, BEFORE, f"{rid} before")
        await log.bind(sid, rid, AFTER, f"{rid} after")
        await log.respond(sid, rid, f"{rid} response")

    await asyncio.gather(*[request(rid) for rid in range(1, 31)], *[log.push(sid, "noise") for _ in range(200)])
    texts = await log.texts(sid)
    assert texts.count("noise") == 200
    for rid in range(1, 31):
        at = texts.index(f"{rid} before")
        assert texts[at : at + 3] == [f"{rid} before", f"{rid} response", f"{rid} after"]


async def test_each_bind_ahead_of_a_request_waits_its_full_time_for_it(log: Log) -> None:
    sid = (await log.create()).sid
    await log.bind(sid, 5, BEFORE, "b1")
    log.later(20_000)
    await log.bind(sid, 5, BEFORE, "b2")
    log.later(29_999)
    assert (await log.store.sessions.sweep()).flushed == 0
    log.later(1)
    assert (await log.store.sessions.sweep()).flushed == 2


async def test_what_shall_be_dropped_at_a_failure_is_sent_with_a_success(log: Log) -> None:
    sid = (await log.create()).sid
    await log.accept(sid, 1)
    await log.bind(sid, 1, BEFORE, "b", on_fail="drop")
    assert (await log.respond(sid, 1)).dropped == 0
    assert await log.texts(sid) == ["b", "response"]


@NEW_OR_USED
async def test_with_a_response_go_as_many_bytes_as_the_hard_cap_leaves(log: Log, is_used: bool) -> None:
    sid = (await (log.create_used if is_used else log.create)(quota=Quota(bytes=200_000))).sid
    await log.push(sid, "x" * 190_000)
    await log.accept(sid, 1)
    for text in ("y" * 60_000, "z" * 60_000):
        assert (await log.bind(sid, 1, AFTER, text)).status is PushStatus.HELD
    assert (await log.respond(sid, 1)).dropped == 1
    assert [text[0] for text in await log.texts(sid)] == ["x", "r", "z"]


async def test_the_number_of_those_that_were_dropped_may_have_several_digits(log: Log) -> None:
    sid = (await log.create(quota=Quota(entries=2))).sid
    await log.accept(sid, 1)
    await log.respond(sid, 1, befores=[tail(f"b{i}") for i in range(165)])
    response = decode_stored((await log.entries(sid))[-1].tail)
    assert (response.kind, response.metadata) == (Kind.RESPONSE, {"dropped": "100"})


async def test_a_session_has_so_many_records_of_requests_and_no_more(log: Log) -> None:
    sid = (await log.create()).sid
    await log.client.hset(keys.requests(sid), mapping={str(rid): "D:1" for rid in range(1, MAX_REQUEST_RECORDS)})
    assert await log.accept(sid, MAX_REQUEST_RECORDS) == "new"
    assert await log.accept(sid, MAX_REQUEST_RECORDS + 1) == "new"
    assert await log.client.hlen(keys.requests(sid)) == MAX_REQUEST_RECORDS // 2
    assert await log.accept(sid, 1) == "done", "forgotten, and answered all the same"
