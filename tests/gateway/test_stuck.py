"""A client that stops reading: the others do not notice, the process does not grow, and it is told what it lost."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.gateway.fleet import Site
from tests.gateway.support import JsonClient
from tests.support.servers import RealServer
from tests.support.sizes import FULL
from tests.support.waiting import until
from veredus import App
from veredus.peer import Peer, connect

STUCK = 60.0 if FULL else 2.0
RATE = 200


def _resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


async def _p99(app: App, peers: list[Peer], found: list[float], seconds: float) -> float:
    """Push to the lively ones for so long: ms from the call to the callback."""
    found.clear()
    began, pushes = time.perf_counter(), []
    for number in range(round(RATE * seconds)):
        await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
        pushes.append(asyncio.create_task(app.push(time.perf_counter(), session=peers[number % len(peers)].session)))
    await asyncio.gather(*pushes)
    await until(lambda: len(found) >= len(pushes), what="all pushes")
    return sorted(found)[len(found) * 99 // 100]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
@pytest.mark.timeout(300)
async def test_a_client_that_stops_reading(valkey_server: RealServer, tmp_path: Path) -> None:
    with Site(valkey_server, tmp_path, gateways=1) as site:
        await site.ready()
        async with App(valkey_server.url) as app:
            found: list[float] = []
            peers = [
                await connect(
                    site.urls("ws"),
                    token=f"user{n}",
                    on_message=lambda item: found.append((time.perf_counter() - item.data) * 1000),  # type: ignore[union-attr]
                )
                for n in range(10)
            ]
            stuck = await JsonClient.open(site.urls("ws")[0], "stuck")
            pid = site.gateways[0].pid
            calm = await _p99(app, peers, found, 2.0)
            memory = _resident_kb(pid)
            stuck._socket.transport.pause_reading()
            for number in range(3000):  # 3 MB, three times the quota; what is beyond it gives way, the oldest first
                await app.push([number, "x" * 1000], session=stuck.sid, policy="drop_oldest")
            stalled = await _p99(app, peers, found, STUCK)
            grown = _resident_kb(pid) - memory
            print(f"p99 {calm:.1f} ms before, {stalled:.1f} ms beside a stuck client; the process grew by {grown} kB")
            assert stalled < calm * 3 + 500, "others wait for a client that does not read"
            assert grown < 8_000
            stuck.cut()
            again = await JsonClient.open(site.urls("ws")[0], "stuck", stuck.resumption())
            assert again.welcome["result"] == "resumed"
            await _read_to_the_end(again, stuck)
            for peer in peers:
                await peer.close()


async def _read_to_the_end(again: JsonClient, stuck: JsonClient) -> None:
    """Every number up to 3,000 is either read or named in a gap, once and in order."""
    expected = stuck.cursor.get("seq", 0) + 1
    while expected <= 3000:
        frame = await again.next()
        if frame["t"] == "gap":
            assert frame["from"] == expected
            expected = frame["to"] + 1
        elif frame["t"] == "msg":
            assert (frame["seq"], frame["body"][0]) == (expected, expected - 1)
            expected += 1
            if expected % 32 == 0:
                await again.ack(expected - 1)
