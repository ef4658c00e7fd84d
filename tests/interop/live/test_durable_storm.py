"""The storm over durable tasks whose children run on live Go servers, which tell nobody when a task has ended."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.durable.storm import RUNS, Place, check_facts, check_rest, fleet_at, rage
from tests.durable.storm_tasks import CHILDREN
from tests.interop.live.peer import GoPeer, go_peer
from tests.support.servers import RealServer, raw
from tests.support.sizes import size
from veredus import App

pytestmark = pytest.mark.timeout(size(240, 1500))
KILLED = size(None, 5)
"""A Go server is killed after so many workers. Its tasks begin again when Go has noticed, some minutes later."""


async def test_children_of_go_servers(
    programs: list[Path], new_server: Callable[..., RealServer], tmp_path: Path
) -> None:
    server = new_server()
    place = Place(server.url, tmp_path / "effects", children=["for-go"], child_type="go:child")
    async with App(place.url, patience=60) as app, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(go_peer(program, server.url)) for program in programs]
        for peer in peers:
            await peer.serve("go:child", queue="for-go")

        async def kill_one(kills: int, emitted: list[int]) -> None:
            if kills == KILLED and peers[0].is_running:
                await peers[0].kill()

        began = time.monotonic()
        with fleet_at(place) as fleet:
            await rage(app, place, fleet, kill_one)
        again, seconds = check_facts(place, fleet.killed), time.monotonic() - began
        print(f"\n{RUNS} runs in {seconds:.0f} s, {len(fleet.killed)} kills; steps that ran again: {again['step']}")
        _check_children(peers)
        await check_rest(
            app, place, [raw(key).decode() for key in server.client().scan_iter(count=10_000)], fleet.killed
        )


def _check_children(peers: list[GoPeer]) -> None:
    """Each ran once, and once more at most if its server was killed while it ran."""
    ended = {fact["id"] for peer in peers for fact in peer.ran}
    begun: Counter[str] = Counter(fact["id"] for peer in peers for fact in peer.began)
    of: dict[tuple[Any, ...], set[str]] = {}
    for peer in peers:
        for fact in peer.began:
            payload = json.loads(fact["payload"])
            of.setdefault((payload["run"], payload["number"]), set()).add(fact["id"])
    assert len(of) == RUNS * CHILDREN
    assert all(len(ids) == 1 for ids in of.values())
    assert set(begun) == ended
    lost = {fact["id"] for peer in peers if not peer.is_running for fact in peer.began}
    assert {one for one, count in begun.items() if count > 1} <= lost
    assert max(begun.values()) <= 2
