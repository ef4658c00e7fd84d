"""A gateway is killed, and all its clients come to another one at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.fleet import Site
from tests.gateway.support import JsonClient, gateway
from tests.support.servers import RealServer, free_port
from tests.support.sizes import FULL, size
from tests.support.waiting import PATIENCE, until
from veredus import App
from veredus.gateway.ports import MAX_RETRY_AFTER
from veredus.model.frames import CloseCode
from veredus.peer import Discontinuity, Message, Peer, connect
from veredus.peer.items import Connected, Event, Retrying

CLIENTS = size(60, 2000)
MESSAGES = 3


@pytest.mark.timeout(600 if FULL else 120)
async def test_all_clients_of_a_killed_gateway_are_resumed_elsewhere_and_none_is_refused_twice(
    valkey_server: RealServer, tmp_path: Path
) -> None:
    """In the small size, the other gateway takes so few at a time that most are refused once."""
    refused: Counter[int] = Counter()
    results: dict[int, str] = {}

    def listener(number: int) -> Callable[[Event], None]:
        def hear(event: Event) -> None:
            if isinstance(event, Retrying) and "too many connections" in event.problem:
                refused[number] += 1
            elif isinstance(event, Connected):
                results[number] = event.result

        return hear

    with Site(valkey_server, tmp_path, gateways=1) as site:
        ws, quic = free_port(), free_port()
        site.ports.append((ws, quic))
        site.gateways.append(site.gateway(1, ws, quic, *(() if FULL else ("--accept-rate", "20"))))
        await site.ready()
        peers: list[Peer] = []
        async with App(valkey_server.url) as app:
            for number in range(CLIENTS):
                peers.append(await connect(site.urls("ws"), token=f"user{number}", on_event=listener(number)))
            refused.clear()
            results.clear()
            began = asyncio.get_running_loop().time()
            site.gateways[0].kill()
            for text in range(MESSAGES):
                await app.push(text, everyone=True)
            await until(lambda: len(results) == CLIENTS, seconds=240 if FULL else PATIENCE, what="all are back")
            took = asyncio.get_running_loop().time() - began
            for peer in peers:
                got = [await peer.receive(PATIENCE) for _ in range(MESSAGES)]
                assert not any(isinstance(item, Discontinuity) for item in got)
                assert [item.data for item in got if isinstance(item, Message)] == list(range(MESSAGES))
        await asyncio.gather(*(peer.detach() for peer in peers))
    print(f"{CLIENTS} clients back after {took:.1f} s; {len(refused)} were refused once or more")
    assert Counter(results.values()) == {"resumed": CLIENTS}
    assert max(refused.values(), default=0) <= 1
    assert FULL or refused


async def test_a_flood_of_connections_does_not_send_others_away_for_long(app: App) -> None:
    """Each one that is refused has a later time than the one before, up to a limit."""
    async with gateway(app, accept_rate=0.1) as gw:
        let_in, *refused = [await JsonClient.connect(gw) for _ in range(6)]
        waits = [(await client.frame("close"))["retry_after_ms"] / 1000 for client in refused]
        assert waits[0] < waits[1] <= max(waits) <= MAX_RETRY_AFTER
        for client in refused:
            assert await client.close_code() == CloseCode.SERVER_OVERLOADED
        await let_in.close()
