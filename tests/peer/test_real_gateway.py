"""Peers in Python and JavaScript against real gateways, a real worker and a real server: cut, moved, resumed."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.peer.conftest import QUICK
from tests.peer.test_javascript import CLIENT, _environment, _node
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, until
from veredus import App, current
from veredus.gateway.gateway import Gateway
from veredus.link.transports.certificate import make_local_certificate
from veredus.peer import Message, Peer, RequestFailed, RequestRejected, Retrying, SessionClosed, connect

STEPS = 60


@pytest.fixture
async def app(valkey_server: RealServer) -> AsyncIterator[App]:
    app = App(valkey_server.url)

    @app.action("count")
    async def count(steps: int) -> dict[str, int]:
        client = current().client
        for step in range(steps):
            await client.notify({"step": step}, type="step", title="T", metadata={"k": "v"})
            await asyncio.sleep(0.01)
        await client.notify(type="before", when="before")
        await client.notify(type="after", when="after")
        return {"steps": steps}

    @app.action("fail")
    async def fail() -> None:
        raise RuntimeError("a secret of the server")

    async with app, app.worker(queues="default"):
        yield app


@pytest.fixture
async def gateways(app: App) -> AsyncIterator[list[Gateway]]:
    made = [app.gateway(ws="127.0.0.1:0", quic="127.0.0.1:0", http="off", drain=0.1) for _ in range(2)]
    async with made[0], made[1]:
        yield made


def urls(kind: str, gateways: list[Gateway]) -> list[str]:
    return [f"{kind}://{one.ws_address if kind == 'ws' else one.quic_address}" for one in gateways]


async def check(peer: Peer) -> None:
    """One whole job: contiguous numbers, before, response, after."""
    kinds: list[tuple[int, str]] = []
    reply = peer.submit("count", {"steps": STEPS})
    while not kinds or kinds[-1][1] != "after":
        item = await peer.receive(PATIENCE)
        assert isinstance(item, Message)
        kinds.append((item.seq, item.type or item.kind.name))
    first = kinds[0][0]
    assert kinds == [(first + n, name) for n, name in enumerate(["step"] * STEPS + ["before", "RESPONSE", "after"])]
    assert await reply == {"steps": STEPS}


@pytest.mark.parametrize("kind", ["ws", "quic"])
async def test_cut_again_and_again_between_two_gateways(kind: str, gateways: list[Gateway]) -> None:
    async with connect(urls(kind, gateways), token="ada", **QUICK) as peer:

        async def cut() -> None:
            while True:
                handled = peer.cursor.seq
                await until(lambda handled=handled: peer.cursor.seq > handled + 10, what="ten more")
                peer.cut()

        cutting = asyncio.create_task(cut())
        await asyncio.gather(check(peer))
        cutting.cancel()
        assert peer.stats()["resumes"] >= 2
        assert peer.stats()["resets"] == 0


async def test_a_gateway_that_stops_moves_its_peers_to_the_other(gateways: list[Gateway]) -> None:
    async with connect(urls("ws", gateways), token="ada", **QUICK) as peer:
        running = asyncio.create_task(check(peer))
        await until(lambda: peer.cursor.seq > 10)
        await gateways[0].stop()
        await running
        assert peer.stats()["resumes"] >= 1


async def test_errors_are_clear_and_tell_no_secrets(gateways: list[Gateway]) -> None:
    async with connect(urls("quic", gateways), token="ada", **QUICK) as peer:
        with pytest.raises(RequestFailed) as failed:
            await peer.request("fail")
        assert failed.value.code == 500
        assert "secret" not in str(failed.value)
        with pytest.raises(RequestRejected) as rejected:
            await peer.request("nothing")
        assert rejected.value.code == 404
        with pytest.raises(RequestFailed) as unfit:
            await peer.request("count", {"steps": "many"})
        assert unfit.value.code == 400
        with pytest.raises(RequestRejected, match="group"):
            await peer.join("room")


async def test_a_session_is_not_given_to_whoever_asks(gateways: list[Gateway]) -> None:
    peer = await connect(urls("ws", gateways), token="ada", **QUICK)
    saved = peer.export()
    await peer.detach()
    for change in ({"token": "bob"}, {"resume": saved._replace(secret="x" * 32)}):
        given: dict[str, Any] = {"token": "ada", "resume": saved, **change}
        with pytest.raises(SessionClosed, match="4501"):
            await connect(urls("ws", gateways), **given, **QUICK)
    async with connect(urls("quic", gateways), token="ada", resume=saved, **QUICK) as again:
        assert again.session == peer.session


async def first_problem(url: str, verify: str | bool) -> str:
    """What the first attempt to connect meets."""
    problems: list[str] = []

    def note(event: object) -> None:
        if isinstance(event, Retrying):
            problems.append(event.problem)

    connecting = asyncio.ensure_future(connect(url, verify=verify, on_event=note, connect_timeout=PATIENCE, **QUICK))
    await until(lambda: problems or connecting.done(), what="a problem")
    assert not connecting.done(), "it is connected"
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    return problems[0]


async def test_certificates_are_verified_when_asked_for(app: App, tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        made = make_local_certificate()
        (tmp_path / f"{name}.pem").write_bytes(made.certificate)
        (tmp_path / f"{name}.key").write_bytes(made.key)
    ours, theirs, key = (str(tmp_path / name) for name in ("ours.pem", "theirs.pem", "ours.key"))
    async with app.gateway(ws="127.0.0.1:0", quic="127.0.0.1:0", http="off", certificate=ours, key=key) as gateway:
        for url in (f"wss://{gateway.ws_address}", f"quic://{gateway.quic_address}"):
            async with connect(url, verify=ours, **QUICK) as peer:
                with pytest.raises(RequestFailed):
                    await peer.request("fail")
            for wrong in (theirs, True):
                assert re.search(r"(?i)cert|verif", await first_problem(url, wrong))


PROGRAM = """
import { connect } from '%s/veredus.js';
const session = await connect(JSON.parse(process.argv[1]), { token: 'ada', backoffBase: 0.01 });
const seen = [];
session.on('message', (message) => {
  seen.push([message.seq, message.type || message.kind]);
  if (message.type === 'after') end();
  else if (seen.length %% 15 === 0) session.cut();
});
const reply = session.request('count', { steps: %d });
async function end() {
  console.log(JSON.stringify({ seen, reply: await reply, stats: session.stats }));
  session.close();
}
"""


async def test_the_javascript_client_between_two_gateways(gateways: list[Gateway]) -> None:
    node = _node()
    program = await asyncio.create_subprocess_exec(
        node, "--input-type=module", "-e", PROGRAM % (CLIENT.as_uri(), STEPS), json.dumps(urls("ws", gateways)),
        env=_environment(node), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(program.communicate(), 2 * PATIENCE)
    assert program.returncode == 0, err.decode()
    said = json.loads(out)
    names = ["step"] * STEPS + ["before", "response", "after"]
    assert said["seen"] == [[n, name] for n, name in enumerate(names, 1)]
    assert said["reply"] == {"steps": STEPS}
    assert said["stats"]["resumes"] >= 2
    assert said["stats"]["resets"] == 0
