"""Ports that are given out once, whoever asks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.servers import free_port

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
    if outgoing.exists():
        assert max(buses) < int(outgoing.read_text().split()[0])
