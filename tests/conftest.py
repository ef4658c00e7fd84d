"""Fixtures for all tests: real servers, an independent client and the store."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis.asyncio
from hypothesis import HealthCheck, settings

from tests.support import servers
from tests.support.clusters import Nodes
from tests.support.leaks import SharedServers, nothing_left_behind
from tests.support.loops import nothing_left
from tests.support.sentinels import Sentinels
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE
from veredus.store.store import Store, connect

# How long one example takes says nothing on a busy machine; hypothesis would fail a test for it after 200 ms.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_configure() -> None:
    """Shells start what runs in the background with SIGINT ignored, and every child would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests start hundreds of interpreters. Where bytecode is not kept, each of them compiles all that it imports.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_finish() -> None:
    """What was collected stays for the whole run: no collection of garbage has to look at it again."""
    gc.freeze()


def pytest_report_header() -> list[str]:
    lines = []
    for product in servers.PRODUCTS:
        try:
            lines.append(f"{product}: {servers.binary(product)}")
        except servers.NoBinary as exc:
            lines.append(f"WARNING: {exc}")
    return lines


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[SharedServers]:
    """One server per product and test process."""
    shared = SharedServers()
    yield shared
    shared.close()


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Iterator[None]:
    """Comes before every other fixture of a test and ends after them."""
    with nothing_left_behind(request.node.nodeid, shared_servers):
        yield


def _shared(shared_servers: SharedServers, product: str) -> RealServer:
    try:
        return shared_servers.get(product)
    except servers.NoBinary as exc:
        pytest.skip(str(exc))


@pytest.fixture(params=servers.PRODUCTS)
def server(request: pytest.FixtureRequest, shared_servers: SharedServers) -> RealServer:
    """An empty server, once per product under test: Valkey and Redis 6.2, or VEREDUS_TEST_SERVERS."""
    return _shared(shared_servers, request.param)


@pytest.fixture
def valkey_server(shared_servers: SharedServers) -> RealServer:
    """An empty Valkey."""
    return _shared(shared_servers, "valkey")


@pytest.fixture
def new_server() -> Iterator[Callable[..., RealServer]]:
    """Starts servers of the test's own, which it may kill, freeze and configure."""
    started: list[RealServer] = []

    def start(*options: str, product: str = "valkey", port: int = 0, sentinel: str = "") -> RealServer:
        try:
            started.append(RealServer(product, *options, port=port, sentinel=sentinel))
        except servers.NoBinary as exc:
            pytest.skip(str(exc))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture(scope="session")
def _cluster(shared_servers: SharedServers) -> Iterator[Nodes]:
    try:
        nodes = Nodes()
    except servers.NoBinary as exc:
        pytest.skip(str(exc))
    shared_servers.keep(nodes.servers)
    yield nodes
    nodes.close()


@pytest.fixture
def nodes(_cluster: Nodes) -> Nodes:
    """An empty cluster of three masters, the same for all tests: none of them may be killed."""
    _cluster.flush()
    return _cluster


@pytest.fixture(scope="session")
def _sentinels(shared_servers: SharedServers) -> Iterator[Sentinels]:
    try:
        sentinels = Sentinels()
    except servers.NoBinary as exc:
        pytest.skip(str(exc))
    shared_servers.keep([*sentinels.servers, *sentinels.sentinels])
    yield sentinels
    sentinels.close()


@pytest.fixture
def sentinels(_sentinels: Sentinels) -> Sentinels:
    """An empty master with a replica, watched by three sentinels, the same for all tests: none may be killed."""
    _sentinels.master().flush()
    return _sentinels


@pytest.fixture
def url(server: RealServer) -> str:
    """The URL of an empty server."""
    return server.url


@pytest.fixture
async def redis_client(server: RealServer) -> AsyncIterator[redis.asyncio.Redis]:
    """An independent client of the same server, as an oracle; it answers in bytes."""
    client = redis.asyncio.Redis(unix_socket_path=server.socket, decode_responses=False, socket_timeout=PATIENCE)
    yield client
    await client.aclose()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """The store under test over the same server."""
    store = Store(connect(url, timeout=PATIENCE))  # not five seconds: see RealServer.start
    yield store
    await store.close()


@pytest.fixture
async def _nothing_left_in_the_loop() -> AsyncIterator[None]:
    yield
    await nothing_left()


@pytest.fixture(autouse=True)
def _loop_is_checked(request: pytest.FixtureRequest, _nothing_left_behind: None) -> None:
    """Of tests that have a loop, which is closed before the sockets are counted. Those in a browser have another
    one."""
    if request.node.get_closest_marker("asyncio"):
        request.getfixturevalue("_nothing_left_in_the_loop")
