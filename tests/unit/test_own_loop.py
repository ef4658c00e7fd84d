"""When a loop that mostly does not run looks for what has come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from veredus.store.connection import own_loop


@pytest.mark.parametrize(
    ("ran_ago", "used_ago", "is_there", "looks", "turns"),
    [(0.0, 0.0, True, 0, 0), (0.0, 0.5, False, 1, 0), (0.5, 0.5, True, 1, 1), (1.5, 0.0, False, 0, 1)],
)
def test_what_has_come_is_looked_for_after_a_pause_and_timers_after_a_second(
    monkeypatch: pytest.MonkeyPatch, ran_ago: float, used_ago: float, is_there: bool, looks: int, turns: int
) -> None:
    """A look costs as much as a system call: calls in close succession do without."""
    loop, seen = own_loop.OwnLoop(), list[str]()

    class Selector:
        def select(self, timeout: float) -> list[str]:
            assert timeout == 0
            seen.append("look")
            return ["socket"] if is_there else []

    def run(coroutine: Any) -> None:
        coroutine.close()
        seen.append("turn")

    monkeypatch.setattr(loop, "_selector", Selector())
    monkeypatch.setattr(loop, "_run_loop", run)
    now = 1000.0
    monkeypatch.setattr("veredus.store.connection.own_loop.time.monotonic", lambda: now)
    loop._ran_at, loop._used_at = now - ran_ago, now - used_ago
    loop._catch_up()
    monkeypatch.undo()
    loop.close(asyncio.sleep(0))
    assert (seen.count("look"), seen.count("turn")) == (looks, turns)
