"""The law of delivery without a server: cursors against logs that lose their tails, quotas, names, entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veredus.errors import ConfigError
from veredus.model.delivery import (
    AttachResult,
    Cursor,
    LogState,
    PushStatus,
    Quota,
    ResetReason,
    has_room,
    judge_cursor,
)
from veredus.model.frames import Kind, Message
from veredus.store.connection.cluster import slot_of
from veredus.wire import session_keys as keys
from veredus.wire.frames import decode_stored, encode_stored
from veredus.wire.log_entries import HEADER, LATE_MARK, unpack_entry


@given(
    before=st.integers(1, 20),
    lost=st.integers(1, 10),
    new=st.integers(0, 20),
    seen=st.integers(0, 30),
    acked=st.integers(0, 20),
)
def test_a_lost_tail_is_always_found(before: int, lost: int, new: int, seen: int, acked: int) -> None:
    """A client that has seen anything of what a failover lost is never told that it may just go on."""
    times = {seq: seq * 10 for seq in range(1, before + lost + 1)}
    cursor_seq = min(seen, before + lost)
    cursor = Cursor("e", cursor_seq, times.get(cursor_seq, 0))
    after = {seq: seq * 10 for seq in range(1, before + 1)} | {
        before + n: 100_000 + n for n in range(1, new + 1)
    }  # what others pushed since has other times
    floor = min(acked, cursor_seq, before)
    state = LogState("e", before + new, floor, after.get(floor, 0))
    verdict, reason, gap = judge_cursor(state, cursor, after.get(cursor_seq))
    if cursor_seq > before:
        assert verdict is AttachResult.RESET
        assert reason in (ResetReason.AHEAD, ResetReason.FORK)
    else:
        assert (verdict, gap) == (AttachResult.RESUMED, None)


def test_what_the_policy_dropped_is_a_gap_and_what_else_is_missing_a_reset() -> None:
    behind = Cursor("e", 2, 1002)
    dropped = LogState("e", top=9, floor=5, floor_ts=1005, policy_floor=5)
    assert judge_cursor(dropped, behind, None) == (AttachResult.RESUMED, ResetReason.NONE, (3, 5))
    lost = LogState("e", top=9, floor=5, floor_ts=1005, policy_floor=4)
    assert judge_cursor(lost, behind, None) == (AttachResult.RESET, ResetReason.TRUNCATED, None)


def test_the_quota_counts_both() -> None:
    state = LogState("e", 10, 8, 0, bytes=900)
    assert has_room(state, Quota(entries=3, bytes=1024), 124)
    assert not has_room(state, Quota(entries=3, bytes=1024), 125)
    assert not has_room(state, Quota(entries=2, bytes=1_000_000), 1)


@pytest.mark.parametrize("settings", [{"entries": 0}, {"bytes": 10}, {"policy": "rejct"}])
def test_a_bad_quota_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as told:
        Quota(**settings)  # type: ignore[arg-type]
    assert next(iter(settings)) in str(told.value)


def test_which_results_are_good_news() -> None:
    bad = {PushStatus.FULL, PushStatus.GONE, PushStatus.TOO_LATE}
    assert {status for status in PushStatus if not status.ok} == bad


def test_all_keys_of_a_session_and_its_user_share_a_slot() -> None:
    for user in ("bob", "eve {x}", "a:b", "ü"):
        sid = keys.new_sid(user)
        assert len(sid) == 25
        tag = keys.sid_tag(sid)
        names = [
            keys.meta(sid), keys.outbox(sid), keys.requests(sid), keys.befores(sid, 1), keys.afters(sid, 1),
            keys.session_groups(sid), keys.dedupe(sid, "k"), keys.told(sid), keys.user(user), keys.mailbox(user),
            keys.user_dedupe(user, "k"), keys.sessions(tag), keys.expiries(tag), keys.deadlines(tag),
            keys.early_binds(tag), keys.attached(tag, "n"), keys.group(tag, "g"), keys.sharded_hints(tag, "n"),
            keys.ended(sid), keys.revoked(user),
        ]  # fmt: skip
        assert len({slot_of(name) for name in names}) == 1
        assert len(set(names)) == len(names)
        assert keys.prefix(tag) == names[0][: len(keys.prefix(tag))]
    assert len({keys.new_sid("")[:4] for _ in range(200)}) > 50


def test_names_of_users_cannot_meet() -> None:
    assert keys.user_dedupe("a:b", "c") != keys.user_dedupe("a", "b:c")
    for bad in ("", "x" * 201, 5):
        with pytest.raises(ConfigError, match="user"):
            keys.check_name("user", bad)  # type: ignore[arg-type]


def test_an_entry_and_the_mark_of_a_late_one() -> None:
    tail = encode_stored(Message(type="t", body=b"x", metadata={"a": "b"}))
    assert unpack_entry(7, HEADER.pack(1, 2, 3) + tail) == (7, 1, 2, tail)
    late = decode_stored(tail + LATE_MARK)
    assert late == decode_stored(tail)._replace(kind=Kind.LATE)
