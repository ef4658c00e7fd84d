"""Real gateway processes: started by the command line, killed, drained, replaced; clients resume elsewhere."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import WebSocketException

from tests.gateway.fleet import ROOT, Site
from tests.gateway.support import JsonClient
from tests.support.processes import running, veredus
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, until
from veredus import App, ConfigError
from veredus.gateway.auth import Identity
from veredus.peer import Connected, Message, Peer, connect

NewServer = Callable[..., RealServer]


async def data(peer: Peer) -> Any:
    """Of the next message."""
    item = await peer.receive(PATIENCE)
    assert isinstance(item, Message)
    return item.data


def _cli(server: RealServer, *arguments: str) -> str:
    command = [sys.executable, "-m", "veredus", *arguments]
    environment = {**os.environ, "VEREDUS_REDIS_URL": server.url, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("scheme", ["ws", "quic"])
async def test_a_killed_gateway_loses_nothing(valkey_server: RealServer, tmp_path: Path, scheme: str) -> None:
    with Site(valkey_server, tmp_path) as site:
        await site.ready()
        async with App(valkey_server.url) as app, connect(site.urls(scheme), token="ada", backoff_base=0.05) as peer:
            for number in range(3):
                assert (await app.push(number, session=peer.session)).ok
            assert [await data(peer) for _ in range(3)] == [0, 1, 2]
            for one in site.gateways:
                one.kill()
                one.start()
                for number in range(3, 6):
                    assert (await app.push(number, session=peer.session)).ok
                assert [await data(peer) for _ in range(3)] == [3, 4, 5], site.logs()
            assert peer.stats()["resets"] == 0


async def test_sigterm_moves_the_clients_to_another_gateway(valkey_server: RealServer, tmp_path: Path) -> None:
    with Site(valkey_server, tmp_path) as site:
        await site.ready()
        nodes: list[str] = []
        seen: list[object] = []

        def noted(event: object) -> None:
            if isinstance(event, Connected):
                nodes.append(event.node)

        async with App(valkey_server.url) as app:
            peers = [
                await connect(
                    site.urls("ws"),
                    token=f"user{n}",
                    backoff_base=0.02,
                    on_event=noted,
                    on_message=lambda item: seen.append(item.data),  # type: ignore[union-attr]
                )
                for n in range(10)
            ]
            assert len(set(nodes)) == 1
            site.gateways[0].terminate()
            sent = 0
            while site.gateways[0].alive():
                for peer in peers:
                    assert (await app.push(sent, session=peer.session)).ok
                    sent += 1
                await asyncio.sleep(0.02)
            assert await site.gateways[0].ended() == 0
            await until(lambda: len(seen) >= sent, what="all that was sent")
            assert sorted(seen) == list(range(sent))  # type: ignore[type-var]
            assert len(set(nodes)) == 2
            assert all(peer.stats()["resets"] == 0 for peer in peers)
            for peer in peers:
                await peer.close()
    assert "draining: closing 10 connections" in site.gateways[0].log.read_text()


async def test_a_killed_worker_s_request_is_answered_once(valkey_server: RealServer, tmp_path: Path) -> None:
    with Site(valkey_server, tmp_path, gateways=1) as site:
        worker = site.worker()
        await site.ready()
        async with connect(site.urls("ws"), token="ada") as peer:
            gate = tmp_path / "gate"
            pending = peer.submit("work", {"n": 1, "gate": str(gate)})
            assert await data(peer) == {"own": 1, "n": 1}
            worker.kill()
            gate.touch()
            worker.start()
            assert await pending == {"n": 1}
            rest = [await data(peer) for _ in range(4)]
            assert rest == [{"own": 2, "n": 1}, {"own": "before", "n": 1}, {"n": 1}, {"own": "after", "n": 1}]


async def test_several_processes_share_a_port_and_the_dead_are_replaced(
    valkey_server: RealServer, tmp_path: Path
) -> None:
    with Site(valkey_server, tmp_path, gateways=1, processes=2) as site:
        await site.ready()
        nodes: set[str] = set()
        async with asyncio.timeout(PATIENCE):
            while len(nodes) < 2:
                client = await JsonClient.open(site.urls("ws")[0], "ada")
                nodes.add(client.welcome["node"])
                await client.send({"t": "bye"})
        victim = int(next(iter(nodes)).split("-")[-2])
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE):
            while len(nodes) < 3:
                try:
                    client = await JsonClient.open(site.urls("ws")[0], "ada")
                except (OSError, WebSocketException):
                    continue
                nodes.add(client.welcome["node"])
                await client.send({"t": "bye"})
        site.gateways[0].terminate()
        assert await site.gateways[0].ended() == 0


async def test_the_command_lists_sessions_and_nodes(valkey_server: RealServer, tmp_path: Path) -> None:
    async with App(valkey_server.url) as app:
        gateway = app.gateway(ws="127.0.0.1:0", quic="off", http="127.0.0.1:0")
        async with gateway:
            client = await JsonClient.open(gateway, "ada")
            await app.push("x", session=client.sid)
            await client.take(1)
            gone = await JsonClient.open(gateway, "bob")
            gone.cut()

            async def listed() -> Any:
                text = await asyncio.to_thread(_cli, valkey_server, "gateway", "sessions", "--json")
                rows = {row["session_id"]: row for row in json.loads(text)}
                return rows if rows[gone.sid]["state"] == "detached" else None

            rows = await until(listed, what="the detached session")
            assert rows[client.sid]["last_sent_seq"] == 1
            assert rows[client.sid]["pending_count"] == 1
            assert (rows[client.sid]["state"], rows[client.sid]["stopped"]) == ("attached", False)
            assert (rows[gone.sid]["state"], rows[gone.sid]["stopped"]) == ("detached", True)
            table = await asyncio.to_thread(_cli, valkey_server, "gateway", "sessions")
            assert client.sid in table
            nodes = json.loads(await asyncio.to_thread(_cli, valkey_server, "gateway", "nodes", "--json"))
            assert [node["node"] for node in nodes] == [gateway.node]


async def test_the_list_of_sessions_can_be_of_one_user_and_short(valkey_server: RealServer) -> None:
    def listed(*more: str) -> list[str]:
        # --redis counts, not the environment
        command = veredus("gateway", "sessions", "--json", "--redis", valkey_server.url, *more)
        environment = {**os.environ, "VEREDUS_REDIS_URL": "unix:///nowhere/s"}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        return [row["user"] for row in json.loads(ended.stdout)]

    async with App(valkey_server.url) as app, app.gateway(ws="127.0.0.1:0", quic="off", http="off") as gateway:
        for user in ("ada", "ada", "ada", "bob"):
            await JsonClient.open(gateway, user)
        assert sorted(await asyncio.to_thread(listed)) == ["ada", "ada", "ada", "bob"]
        assert await asyncio.to_thread(listed, "--user", "bob") == ["bob"]
        assert await asyncio.to_thread(listed, "--user", "eve") == []
        assert len(await asyncio.to_thread(listed, "--limit", "2")) == 2
        assert await asyncio.to_thread(listed, "--user", "ada", "--limit", "2") == ["ada", "ada"]


async def test_commands_list_a_group_and_end_sessions(valkey_server: RealServer) -> None:
    async def cli(*arguments: str) -> Any:
        return json.loads(await asyncio.to_thread(_cli, valkey_server, "gateway", *arguments, "--json"))

    async with App(valkey_server.url) as app, app.gateway(ws="127.0.0.1:0", quic="off", http="off") as gateway:
        one, two, three = [await JsonClient.open(gateway, user) for user in ("ada", "ada", "bob")]
        await app.join(two.sid, "lobby")
        assert [row["session_id"] for row in await cli("sessions", "--group", "lobby")] == [two.sid]
        assert await cli("disconnect", "--session", one.sid, "--reason", "spam") == {"ended": 1}
        assert (await one.frame("close"))["reason"] == "spam"
        assert await cli("revoke", "--user", "ada", "--before", "2020-01-01T00:00:00Z") == {"ended": 0}
        assert await cli("revoke", "--user", "ada") == {"ended": 1}
        assert await two.close_code() == 4501
        text = await asyncio.to_thread(_cli, valkey_server, "gateway", "disconnect", "--user", "bob")
        assert text == "ended 1 session\n"
        assert await three.close_code() == 4504


async def test_the_command_refuses_what_is_not_safe(valkey_server: RealServer) -> None:
    command = [sys.executable, "-m", "veredus", "gateway", "tests.gateway.site:app", "--ws", "0.0.0.0:0"]
    environment = {**os.environ, "VEREDUS_REDIS_URL": valkey_server.url, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "ws: got '0.0.0.0:0', expected a loopback address" in ended.stderr


async def test_its_log_is_json_if_wanted(valkey_server: RealServer) -> None:
    where = ("--ws", "127.0.0.1:0", "--quic", "off", "--http", "off")
    command = veredus("gateway", "tests.gateway.site:app", *where, "--log-format", "json", "--log-level", "info")
    environment = {**os.environ, "VEREDUS_REDIS_URL": valkey_server.url, "PYTHONPATH": str(ROOT)}
    with running(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        lines = [await asyncio.wait_for(asyncio.to_thread(process.stderr.readline), PATIENCE) for _ in range(2)]
        server, serves = (json.loads(line)["message"] for line in lines)
        assert server.startswith("server: ")
        assert " serves ws 127.0.0.1:" in serves


async def test_the_bench_loses_nothing_through_broken_connections(valkey_server: RealServer) -> None:
    arguments = ("--clients", "6", "--rate", "300", "--seconds", "1.5", "--cut", "1", "--transport", "both", "--json")
    found = json.loads(await asyncio.to_thread(_cli, valkey_server, "gateway", "bench", *arguments))
    assert (found["missing"], found["out_of_order"], found["refused"]) == (0, 0, 0)
    assert found["delivered"] == found["pushed"] == 450
    assert found["cuts"]
    assert found["p50_ms"] > 0


async def test_the_bench_runs_against_a_gateway_that_is_there(valkey_server: RealServer) -> None:
    """Of which it must be told the address, the server behind it and a token."""
    users: list[str] = []

    def only_ada(token: str) -> Identity:
        users.append(token)
        return Identity(user=token)

    async with App(valkey_server.url) as app:
        settings = {"quic": "off", "http": "off", "authenticate": only_ada}
        async with app.gateway(ws="127.0.0.1:0", **settings) as gateway:
            command = [sys.executable, "-m", "veredus", "gateway", "bench", "--json", "--redis", valkey_server.url]
            command += ["--url", f"ws://{gateway.ws_address}", "--token", "ada", "--size", "50000"]
            command += ["--clients", "2", "--rate", "20", "--seconds", "0.5"]
            environment = {**os.environ, "VEREDUS_REDIS_URL": "unix:///nowhere/s"}
            ended = await asyncio.to_thread(
                subprocess.run, command, env=environment, capture_output=True, text=True, timeout=60
            )
            assert ended.returncode == 0, ended.stderr
            found = json.loads(ended.stdout)
            assert (found["delivered"], found["pushed"], found["size"]) == (10, 10, 50_000)
            assert found["gateway_cpu"] is None, "it started none of its own"
            assert users == ["ada", "ada"]
    with valkey_server.client() as client:
        assert client.info("stats")["total_net_input_bytes"] > 10 * 49_000


async def test_a_port_that_is_taken_is_said_so(app: App) -> None:
    async with app.gateway(ws="127.0.0.1:0", quic="off", http="127.0.0.1:0") as gateway:
        for name, place in (("ws", gateway.ws_address), ("http", gateway.http_address)):
            settings = {"ws": "127.0.0.1:0", "quic": "off", "http": "off", name: str(place)}
            others = asyncio.all_tasks()
            with pytest.raises(ConfigError, match=f"{name}: got '{place}', expected a free address"):
                await app.gateway(**settings).start()
            assert asyncio.all_tasks() <= others, "a gateway that could not start leaves no task behind"


async def test_a_gateway_that_no_longer_listens_is_not_ready(app: App) -> None:
    async with app.gateway(ws="127.0.0.1:0", quic="off", http="off") as gateway:
        assert gateway.not_ready() == []
        assert gateway.ports is not None
        await gateway.ports.close()
        assert gateway.not_ready() == ["not listening"]


async def test_a_gateway_that_has_stopped_leaves_no_thread_behind(app: App) -> None:
    """Hooks and handlers that are plain functions run in threads."""
    before, ran_in = set(threading.enumerate()), set[str]()

    def authenticate(token: str) -> Identity:
        ran_in.add(threading.current_thread().name)
        return Identity(user=token)

    @app.action("here", where="gateway")
    def here() -> str:
        ran_in.add(threading.current_thread().name)
        return "done"

    settings = {"quic": "off", "http": "off", "authenticate": authenticate}
    async with app.gateway(ws="127.0.0.1:0", **settings) as gateway:
        async with connect(f"ws://{gateway.ws_address}", token="ada") as peer:
            assert await peer.request("here") == "done"
        assert ran_in
        assert threading.current_thread().name not in ran_in
    await until(lambda: not [one for one in set(threading.enumerate()) - before if one.name.startswith("veredus")])
