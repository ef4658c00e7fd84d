"""An alarm rings once, never early, and not only at whole milliseconds; also where the system has no timer for that."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import closing

import pytest

from veredus.worker import alarm
from veredus.worker.alarm import Alarm

EARLY = 0.001
"""A loop's own timers may be early by the resolution of its clock."""


@pytest.fixture(params=["as the system can", "with the loop's timers"])
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "with the loop's timers":
        monkeypatch.setattr(alarm, "_open_timer", lambda: -1)


@pytest.mark.usefixtures("_kind")
async def test_it_rings_once_at_the_time_set_last() -> None:
    rung = asyncio.Event()
    with closing(Alarm(rung.set)) as one:
        began = time.monotonic()
        one.set(60)
        one.set(0.03)
        await asyncio.wait_for(rung.wait(), 10)
        assert time.monotonic() - began >= 0.03 - EARLY
        rung.clear()
        one.set(0.0)
        await asyncio.wait_for(rung.wait(), 10)
        rung.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rung.wait(), 0.03)


@pytest.mark.usefixtures("_kind")
async def test_one_that_was_cancelled_or_closed_does_not_ring() -> None:
    rung = asyncio.Event()
    one = Alarm(rung.set)
    one.set(0.01)
    one.cancel()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rung.wait(), 0.03)
    one.set(0.01)
    one.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rung.wait(), 0.03)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has timers that are files")
async def test_it_does_not_wait_for_the_next_millisecond() -> None:
    """On a busy machine it may be late, but not each time."""
    rung = asyncio.Event()
    late = []
    with closing(Alarm(rung.set)) as one:
        for _ in range(50):
            rung.clear()
            began = time.monotonic()
            one.set(0.0051)
            await rung.wait()
            late.append(time.monotonic() - began - 0.0051)
    assert 0 <= min(late) < 0.0005


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts the open files in /proc")
async def test_closing_it_closes_its_file() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        Alarm(lambda: None).close()
    assert len(os.listdir("/proc/self/fd")) == before
