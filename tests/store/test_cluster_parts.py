"""What a cluster's client knows of its nodes: shares, places, ages, and whom it does not wait for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.clusters import Nodes
from tests.support.waiting import until
from veredus.errors import ConnectionLost
from veredus.store.connection import cluster as module
from veredus.store.connection.address import parse_url
from veredus.store.connection.cluster import Cluster
from veredus.store.connection.slot_map import SLOTS, Endpoint, slot_of
from veredus.wire import keys


@pytest.fixture
async def cluster(nodes: Nodes) -> AsyncIterator[Cluster]:
    made = Cluster(parse_url(nodes.url), 5.0, "test")
    yield made
    await made.close()


def _keys(nodes: Nodes) -> list[str]:
    """Two keys of each of the three nodes, in turns."""
    names = [nodes.queues(node, 2) for node in range(3)]
    return [keys.pending(names[node][number]) for number in range(2) for node in range(3)]


async def test_keys_are_shared_out_by_node(nodes: Nodes, cluster: Cluster) -> None:
    found = _keys(nodes)
    assert cluster.known_shares(found) == [[0, 1, 2, 3, 4, 5]], "nothing is known yet"
    assert await cluster.by_node(found) == [[found[0], found[3]], [found[1], found[4]], [found[2], found[5]]]
    assert cluster.known_shares(found) == [[0, 3], [1, 4], [2, 5]]
    for number, key in enumerate(found):
        assert await cluster.place(key) == f"127.0.0.1:{nodes.servers[number % 3].port}"


async def test_a_doubted_node_is_trusted_again_when_it_answers(nodes: Nodes, cluster: Cluster) -> None:
    key = _keys(nodes)[0]
    endpoint = await cluster._map.find(slot_of(key))
    cluster._map.doubt(endpoint)
    assert await cluster.command("EXISTS", key, key=key) == 0
    assert not cluster._map.is_doubted(endpoint)


@pytest.fixture
def deaf() -> Iterator[Endpoint]:
    """A port at which nobody ever answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()


async def test_a_doubted_node_that_hangs_is_not_waited_for(deaf: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IMPATIENCE", 0.02)
    cluster = Cluster(parse_url(f"redis+cluster://127.0.0.1:{deaf[1]}"), 600.0, "test")
    cluster._map.doubt(deaf)
    cluster._map._owners = [deaf] * SLOTS
    async with asyncio.timeout(30.0):
        replies = await cluster.command_each([("GET", "a"), ("GET", b"b")])
    assert [str(reply) for reply in replies] == [f"127.0.0.1:{deaf[1]} does not answer"] * 2
    assert all(isinstance(reply, ConnectionLost) for reply in replies)
    assert cluster._map.is_doubted(deaf)
    assert cluster._map.owner(0) is None, "others are asked who has its slots"
    await cluster.close()


async def test_a_connection_that_cannot_be_opened_is_a_reason_to_doubt(cluster: Cluster) -> None:
    nobody = ("127.0.0.1", 1)
    cluster._map._owners = [nobody] * SLOTS
    with pytest.raises(ConnectionLost):
        await cluster.open("a")
    assert cluster._map.is_doubted(nobody)
    assert (await cluster.open("a")).alive, "the others know who has the slot"


async def test_redirects_in_circles_come_to_an_end(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that each say that the other has the slot."""
    cluster = Cluster(parse_url(nodes.url), 5.0, "test")
    key = _keys(nodes)[0]
    right = await cluster._map.find(slot_of(key))
    wrong = next(server for server in nodes.servers if server.port != right[1])
    moved: list[Endpoint] = []

    def stubborn(slot: int, endpoint: Endpoint) -> None:
        moved.append(endpoint)
        cluster._map._owners[slot] = ("127.0.0.1", wrong.port)

    cluster._map._owners[slot_of(key)] = ("127.0.0.1", wrong.port)
    monkeypatch.setattr(cluster._map, "moved", stubborn)
    (reply,) = await cluster.command_each([("GET", key)])
    assert isinstance(reply, Exception)
    assert moved == [right] * 5
    monkeypatch.undo()
    assert await cluster.command("EXISTS", key, key=key) == 0
    await cluster.close()


async def test_closed_it_has_no_connection_left(nodes: Nodes) -> None:
    cluster = Cluster(parse_url(nodes.url), 5.0, "test")
    await cluster.command_each([("GET", key) for key in _keys(nodes)])
    connections = [node._connection for node in cluster._nodes.values()]
    assert len(connections) == 3
    await cluster.close()
    assert not any(connection is not None and connection.alive for connection in connections)
    assert cluster._nodes == {}


async def test_a_close_while_the_cluster_is_asked_for_its_slots_ends_the_asking(deaf: Endpoint) -> None:
    with socket.socket() as next_one:
        next_one.bind(("127.0.0.1", 0))
        next_one.listen()
        next_one.setblocking(False)
        hosts = f"127.0.0.1:{deaf[1]},127.0.0.1:{next_one.getsockname()[1]}"
        cluster = Cluster(parse_url(f"redis+cluster://{hosts}"), 600.0, "test")
        calling = asyncio.create_task(cluster.command("GET", "a", key="a"))
        await until(lambda: deaf in cluster._nodes, what="a question to the first")
        await cluster.close()
        with pytest.raises(ConnectionLost, match="closed while the cluster was asked for its slots"):
            await calling
        with pytest.raises(BlockingIOError):
            next_one.accept()


async def test_a_redirect_that_names_no_host_means_the_one_that_gave_it(nodes: Nodes, cluster: Cluster) -> None:
    """As nodes behind an address that they do not know themselves say it."""
    first, second = (nodes.servers[node].client() for node in range(2))
    for client in (first, second):
        client.config_set("cluster-preferred-endpoint-type", "unknown-endpoint")
    try:
        key = _keys(nodes)[0]
        wrong, right = nodes.servers[1].port, nodes.servers[0].port
        await cluster._map.find(slot_of(key))
        cluster._map._owners[slot_of(key)] = ("127.0.0.1", wrong)
        assert await cluster.command("EXISTS", key, key=key) == 0
        assert await cluster.place(key) == f"127.0.0.1:{right}"
    finally:
        for client in (first, second):
            client.config_set("cluster-preferred-endpoint-type", "ip")
