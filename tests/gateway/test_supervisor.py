"""How gateway processes end: at a second signal, together, after a mistake, without a supervisor, or killed by it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.gateway.fleet import Process, Site
from tests.gateway.support import JsonClient
from tests.support.servers import RealServer, free_port
from tests.support.waiting import pause, until
from veredus.process.supervisor import SAME_REQUEST
from veredus.store.store import Store

ON_LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the children's ids from /proc")
IMPATIENT = """
import sys
from tests.gateway.site import app
from veredus.gateway import supervisor
supervisor.KILL_AFTER = 0.2
sys.exit(app.gateway(ws=sys.argv[1], quic="off", http="off", drain=0.1, processes=2).run())
"""


@asynccontextmanager
async def served(server: RealServer, folder: Path, *more: str) -> AsyncIterator[tuple[Process, str]]:
    """A gateway with these options that takes connections, and its address."""
    with Site(server, folder, gateways=0) as site:
        site.ports.append((free_port(), free_port()))
        process = site.gateway(0, *site.ports[0], *more)
        await site.ready()
        yield process, site.urls("ws")[0]


def children(process: Process) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_second_signal_ends_the_drain_at_once(valkey_server: RealServer, tmp_path: Path) -> None:
    async with served(valkey_server, tmp_path, "--drain", "600") as (process, url):
        client = await JsonClient.open(url, "ada")
        os.kill(process.pid, signal.SIGSTOP)  # so that both are there when it goes on, however busy the machine is
        process.terminate()
        os.kill(process.pid, signal.SIGINT)  # another one: two of a kind may arrive as one
        os.kill(process.pid, signal.SIGCONT)
        await client.frame("goaway")
        await pause(SAME_REQUEST + 0.1, proves="two signals at once are one wish: the clients keep their time")
        assert process.alive()
        process.terminate()
        assert await client.close_code() == 4000
        assert await process.ended() == 0


@ON_LINUX
async def test_an_interrupt_of_the_whole_group_stops_each_process_once(
    valkey_server: RealServer, tmp_path: Path
) -> None:
    """As Ctrl-C does: the children leave it to the supervisor, which lets them drain."""
    async with served(valkey_server, tmp_path, "--processes", "2") as (process, url):
        await until(lambda: process.log.read_text().count(" serves ") == 2, what="both processes")
        client = await JsonClient.open(url, "ada")
        os.killpg(process.pid, signal.SIGINT)
        await client.frame("goaway")
        assert await process.ended() == 0
    assert "ended with" not in process.log.read_text()


@ON_LINUX
async def test_children_do_not_outlive_a_killed_supervisor(valkey_server: RealServer, tmp_path: Path) -> None:
    async with served(valkey_server, tmp_path, "--processes", "2") as (process, url):
        await until(lambda: process.log.read_text().count(" serves ") == 2, what="both processes")
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: not is_taken(int(url.rsplit(":", 1)[1])), what="the end of the children")


async def test_a_mistake_in_one_process_ends_all_with_its_code(valkey_server: RealServer, tmp_path: Path) -> None:
    """The second process would have the next port for HTTP, which is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1] - 1}"
        with Site(valkey_server, tmp_path, gateways=0) as site:
            process = site.gateway(0, free_port(), free_port(), "--http", place, "--processes", "2")
            assert await process.ended() == 2
    assert "expected a free address" in process.log.read_text()


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_without_a_server_it_ends_with_a_code_of_its_own(
    valkey_server: RealServer, tmp_path: Path, processes: str
) -> None:
    arguments = ["gateway", "tests.gateway.site:app", "--ws", "127.0.0.1:0", "--quic", "off", "--http", "off"]
    process = Process([*arguments, "--processes", processes], "redis://127.0.0.1:1/0", tmp_path / "log")
    try:
        assert await process.ended() == 3, process.log.read_text()
    finally:
        process.kill()
    assert "127.0.0.1:1" in process.log.read_text()
    assert "Traceback" not in process.log.read_text()


@ON_LINUX
async def test_a_process_that_does_not_stop_is_killed_and_that_is_told(
    valkey_server: RealServer, gw_store: Store, tmp_path: Path
) -> None:
    port = free_port()
    log = tmp_path / "log"
    process = Process([f"127.0.0.1:{port}"], valkey_server.url, log, program=("-c", IMPATIENT))
    try:

        async def both_serve() -> bool:
            nodes = await gw_store.nodes.nodes()
            return len([one for one in nodes.values() if one.info.get("ws")]) == 2

        await until(both_serve, what="both processes")
        os.kill(children(process)[1], signal.SIGSTOP)
        process.terminate()
        assert await process.ended() == 1
        assert "does not stop and is killed" in log.read_text()
    finally:
        process.kill()
