"""The server's clock, as observations on a busy machine and over slow links tell it."""

from __future__ import annotations

import asyncio
import time

import pytest

from veredus.clock import ServerClock
from veredus.store.store import Store

SERVER = 1_000_000.0
"""The server's time when our monotonic clock is 0."""


def _observe(clock: ServerClock, sent: float, there: float, back: float) -> None:
    """Asked at `sent`; the server read its clock `there` seconds later, and the answer took `back`."""
    clock.observe(SERVER + sent + there, sent, sent + there + back)


def _error(clock: ServerClock) -> float:
    return abs(clock.ahead - SERVER)


def test_a_slow_answer_does_not_spoil_what_a_quick_one_said() -> None:
    clock = ServerClock()
    _observe(clock, 10, 0.0002, 0.0002)
    assert _error(clock) < 0.001
    for sent, there, back in ((14, 0.0001, 1.3), (18, 0.9, 0.0001), (22, 0.2, 0.2)):
        _observe(clock, sent, there, back)
        assert _error(clock) < 0.001, "a second between question and answer says nothing new"


def test_a_quick_answer_corrects_what_a_slow_one_said() -> None:
    clock = ServerClock()
    _observe(clock, 10, 0.0001, 1.4)
    assert _error(clock) > 0.5
    _observe(clock, 14, 0.01, 0.02)
    assert _error(clock) < 0.02
    _observe(clock, 18, 0.0002, 0.0002)
    assert _error(clock) < 0.001


@pytest.mark.parametrize("step", [-3600.0, -0.5, 0.5, 3600.0])
def test_a_clock_that_is_set_is_followed_at_once(step: float) -> None:
    clock = ServerClock()
    _observe(clock, 10, 0.0002, 0.0002)
    clock.observe(SERVER + step + 14.1, 14, 14.2)  # 0.1 s there, 0.1 s back
    assert abs(clock.ahead - SERVER - step) <= 0.101
    clock.observe(SERVER + step + 18, 18, 18.0004)
    assert abs(clock.ahead - SERVER - step) < 0.001


def test_a_clock_that_drifts_is_followed_though_its_answers_become_slower() -> None:
    clock = ServerClock()
    _observe(clock, 0, 0.0001, 0.0001)
    for n in range(1, 1000):
        drift = n * 0.002
        clock.observe(SERVER + n * 4 + drift + 0.01, n * 4, n * 4 + 0.02)
        assert abs(clock.ahead - SERVER - drift) <= 0.0225, n


async def test_a_slow_answer_is_asked_for_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    answer = store.server_time_ms

    async def slow() -> int:
        found = await answer()
        asked.append(time.monotonic())
        await asyncio.sleep(0.02)
        return found

    monkeypatch.setattr(store, "server_time_ms", slow)
    await store.set_clock(ServerClock())
    assert len(asked) == 3
