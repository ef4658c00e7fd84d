"""Alarms ring once, in time, and not after they were dismissed, near or far."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.loops import ours
from tests.support.waiting import until
from veredus.handlers import deadlines
from veredus.handlers.deadlines import GRAIN, Deadlines


@pytest.fixture(autouse=True)
def short_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "FAR", 0.05)


@pytest.mark.parametrize("seconds", [0.0, 0.03, 0.08, 0.13, 0.2, 0.31])
async def test_it_rings_in_time(seconds: float) -> None:
    rung: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    mine: Deadlines[str] = Deadlines(lambda item: rung.set_result(time.monotonic()))
    now = time.monotonic()
    mine.set("a", now + seconds, now)
    assert await rung - (now + seconds) > -0.001


@pytest.mark.parametrize("near", [False, True], ids=["far", "near"])
async def test_a_dismissed_one_is_silent_and_leaves_nothing_behind(near: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "FAR", 0.4)
    rung: list[str] = []
    over = asyncio.Event()

    def ring(item: str) -> None:
        rung.append(item)
        over.set()

    mine: Deadlines[str] = Deadlines(ring)
    now = time.monotonic()
    at = (int(now / 0.4) + 4) * 0.4 - 2 * GRAIN  # far off, and at the end of a wide slot: near for a long time
    slot = mine.set("a", at, now)
    mine.set("b", at + GRAIN, now)
    assert slot < 0
    if near:
        await until(lambda: mine._moved)
    mine.dismiss("a", slot)
    await over.wait()
    assert rung == ["b"]
    assert not mine._near
    assert not mine._moved


async def test_a_closed_one_is_silent_and_leaves_no_timer() -> None:
    mine: Deadlines[str] = Deadlines(pytest.fail)
    now = time.monotonic()
    slots = {item: mine.set(item, now + seconds, now) for item, seconds in (("near", 0.05), ("far", 30.0))}
    assert slots["near"] > 0 > slots["far"]
    mine.close()
    assert ours(asyncio.get_running_loop()) == []
    for item, slot in slots.items():  # a handler that did not end in time
        mine.dismiss(item, slot)


async def test_dismissing_twice_or_after_it_rang_does_no_harm() -> None:
    over = asyncio.Event()
    mine: Deadlines[str] = Deadlines(lambda item: over.set())
    now = time.monotonic()
    slot = mine.set("a", now + 0.15, now)
    await over.wait()
    mine.dismiss("a", slot)
    mine.dismiss("a", slot)
