"""One timer for many, and a look at encoded messages."""

from __future__ import annotations

import random

import pytest

from veredus.gateway.timer_wheel import TimerWheel
from veredus.model.frames import Kind, Message
from veredus.wire.frames import encode_stored
from veredus.wire.peek import response_rid


def test_everything_is_due_once_not_early_and_a_slot_late_at_most() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    wheel: TimerWheel[int] = TimerWheel(0.25, 100.0)
    due_at = {item: 100.0 + dice.uniform(-5, 60) for item in range(500)}
    for item, at in due_at.items():
        wheel.put(item, at)
    seen: dict[int, float] = {}
    now = 100.0
    while len(seen) < 500 and now < 200:
        now += dice.choice((0.01, 0.1, 0.3, 5.0))
        before = now
        for item in wheel.due(now):
            assert item not in seen
            seen[item] = now
            assert due_at[item] <= now
        assert all(max(at, 100.0) > before - 0.5 for item, at in due_at.items() if item not in seen)
    assert len(seen) == 500
    assert len(wheel) == 0


def test_what_is_taken_out_is_not_due() -> None:
    wheel: TimerWheel[str] = TimerWheel(0.25, 0.0)
    slot = wheel.put("a", 1.0)
    wheel.put("b", 1.0)
    assert wheel.take("a", slot)
    assert not wheel.take("a", slot)
    assert wheel.due(2.0) == ["b"]
    assert not wheel.take("b", slot)


@pytest.mark.parametrize("slot", [0.1, 3.0])
def test_it_begins_at_the_time_it_is_given(slot: float) -> None:
    wheel: TimerWheel[str] = TimerWheel(slot, 1000.0)
    wheel.put("a", 1000.0 + slot)
    assert wheel.due(1000.0) == []
    assert wheel.due(1000.0 + 3 * slot) == ["a"]


def test_after_a_long_sleep_the_oldest_comes_first() -> None:
    wheel: TimerWheel[int] = TimerWheel(0.01, 0.0)
    for item in (3, 1, 2):
        wheel.put(item, item * 100.0)
    assert wheel.due(1e6) == [1, 2, 3]
    wheel.put(4, 0.0)
    assert wheel.due(1e6 + 1) == [4]


@pytest.mark.parametrize("rid", [1, 127, 128, 300, 2**32, 2**53 - 1])
def test_a_response_is_known_by_its_first_bytes(rid: int) -> None:
    full = Message(kind=Kind.RESPONSE, rid=rid, type="t", title="T", body=b"x", code=500, error="e", create_time=7)
    assert response_rid(encode_stored(full)) == rid
    assert response_rid(encode_stored(Message(kind=Kind.RESPONSE, rid=rid))) == rid
    for kind in (Kind.NOTIFY, Kind.GROUP, Kind.LATE, Kind.TOMBSTONE):
        assert response_rid(encode_stored(Message(kind=kind, rid=rid, body=b"\x18\x01"))) == 0


@pytest.mark.parametrize("data", [b"", b"\x18", b"\x18\x01", b"\x18\x01\x20", b"\x18\x01\x20" + b"\xff" * 20])
def test_a_tail_that_is_cut_off_answers_nothing(data: bytes) -> None:
    assert response_rid(data) == 0
