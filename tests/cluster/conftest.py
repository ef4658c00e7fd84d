"""The two places where everything must work as on one server, and set-ups whose servers may be killed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.support.clusters import Nodes
from tests.support.leaks import SharedServers
from tests.support.sentinels import Sentinels
from tests.support.servers import NoBinary, free_port
from veredus import App


@dataclass(frozen=True)
class Place:
    """Where an app works: its URL, and queues which, in a cluster, are on different nodes."""

    url: str
    queues: list[str]
    servers: list[str]
    """URLs of the masters."""


@pytest.fixture(params=["cluster", "sentinel"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "cluster":
        nodes: Nodes = request.getfixturevalue("nodes")
        return Place(nodes.url, nodes.spread(6), [server.url for server in nodes.masters])
    sentinels: Sentinels = request.getfixturevalue("sentinels")
    return Place(sentinels.url, [f"q{n}" for n in range(6)], [sentinels.master().url])


@pytest.fixture
async def app(place: Place) -> AsyncIterator[App]:
    """An app there. After the test, whatever is left must be sound."""
    app = App(place.url)
    yield app
    async with app.inspector() as inspector:
        assert [one for one in await inspector.doctor.diagnose(server=False) if one.repairable] == []
    await app.close()


@pytest.fixture
def new_nodes() -> Iterator[Callable[..., Nodes]]:
    """Clusters of the test's own, whose masters may be killed."""
    started: list[Nodes] = []

    def start(*options: str, replicas: bool = False, node_timeout: int = 2000) -> Nodes:
        started.append(Nodes(*options, replicas=replicas, node_timeout=node_timeout))
        return started[-1]

    yield start
    for nodes in started:
        nodes.close()


@pytest.fixture
def new_sentinels() -> Iterator[Callable[..., Sentinels]]:
    """Masters, replicas and sentinels of the test's own, which may be killed."""
    started: list[Sentinels] = []

    def start(*options: str, **settings: int) -> Sentinels:
        started.append(Sentinels(*options, **settings))
        return started[-1]

    yield start
    for sentinels in started:
        sentinels.close()


class Relayed:
    """A cluster whose nodes give other ports than their own: a test puts its relays there."""

    def __init__(self) -> None:
        self.ports: dict[int, int] = {}
        """The port of the relay, and of the node behind it."""

        def announce(port: int) -> tuple[str, ...]:
            relay = free_port()
            self.ports[relay] = port
            return ("--cluster-announce-port", str(relay), "--cluster-announce-bus-port", str(port + 10_000))

        self.nodes = Nodes(ports=announce)

    def url(self, scheme: str = "redis+cluster", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{next(iter(self.ports))}"


@pytest.fixture(scope="session")
def _relayed_cluster(shared_servers: SharedServers) -> Iterator[Relayed]:
    try:
        relayed = Relayed()
    except NoBinary as exc:
        pytest.skip(str(exc))
    shared_servers.keep(relayed.nodes.servers)
    yield relayed
    relayed.nodes.close()


@pytest.fixture
def relayed_cluster(_relayed_cluster: Relayed) -> Relayed:
    _relayed_cluster.nodes.flush()
    return _relayed_cluster
