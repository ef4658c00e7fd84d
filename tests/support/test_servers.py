"""Ports that are given out once, whoever asks."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.servers import RealServer, free_port, ports_below
from tests.support.waiting import PATIENCE, pause_sync

ASK = "from tests.support.servers import free_port; print(*[free_port() for _ in range(300)], flush=True); input()"


def test_test_processes_get_different_ports_and_none_that_an_outgoing_connection_may_have() -> None:
    mine = {free_port() for _ in range(300)}
    others = [
        subprocess.Popen([sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    given = list(mine)
    try:
        for other in others:
            assert other.stdout is not None
            given += map(int, other.stdout.readline().split())
    finally:
        for other in others:
            other.communicate("\n")
    buses = {port + 10_000 for port in given}
    assert len(set(given)) == len(given) == 900, "a port was given out twice"
    assert not buses & set(given), "a port is the cluster-bus port of another one"
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if outgoing.exists() and (first := int(outgoing.read_text().split()[0])) >= 16_000:
        assert max(buses) < first


@pytest.mark.parametrize("outgoing", [12_100, 15_000, 16_000, 32_768, 49_152])
def test_no_outgoing_connection_takes_a_port_or_its_cluster_bus_port(outgoing: int) -> None:
    ports = ports_below(outgoing)
    assert len(ports) >= 1000
    assert ports[0] >= 1024
    assert ports[0] + 10_000 > ports[-1], "a port would be the cluster-bus port of another one"
    assert ports[-1] + 10_000 < outgoing


def test_where_all_ports_are_given_to_outgoing_connections_some_of_them_have_to_do() -> None:
    assert len(ports_below(1024)) == 10_000


@pytest.mark.parametrize("bus", [0, 10_000])
def test_a_server_waits_for_a_port_that_something_else_has(bus: int) -> None:
    port = free_port()
    with socket.socket() as taken, ThreadPoolExecutor() as pool:
        taken.bind(("127.0.0.1", port + bus))
        taken.listen()
        started = pool.submit(RealServer, "valkey", "--cluster-enabled", "yes", port=port)
        pause_sync(0.3, proves="it neither fails nor takes the one who has the port for itself")
        assert not started.done()
        taken.close()
        server = started.result(PATIENCE)  # it lives as long as the thread that started it
        with server.client() as client:
            assert client.ping()
        server.close()


def test_a_server_that_ends_for_another_reason_is_reported_at_once() -> None:
    with pytest.raises(AssertionError, match="ended at once"):
        RealServer("valkey", "--no-such-option", "1")
