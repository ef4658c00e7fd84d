"""A store that loses sessions, rejects that pass, joins during an outage: clients go on, and say what was lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.peer.conftest import QUICK
from tests.peer.test_javascript import CLIENT, _environment, _node
from tests.support.servers import RealServer
from tests.support.sizes import FULL
from tests.support.waiting import PATIENCE, until
from veredus import App, current
from veredus.errors import ConnectionLost
from veredus.gateway import maintenance
from veredus.gateway.auth import Identity
from veredus.gateway.gateway import Gateway
from veredus.peer import Discontinuity, Message, Peer, RequestLost, RequestRejected, connect

CLIENTS = 20 if FULL else 4
SCRIPT = Path(__file__).parent / "javascript/real.test.mjs"


def _may_join(who: Identity, group: str) -> bool:
    return group == "room"


@pytest.fixture
async def app(valkey_server: RealServer) -> AsyncIterator[App]:
    """With actions by which a client has the server do something to it."""
    ran: list[str] = []
    async with App(valkey_server.url) as app:

        @app.action("echo", where="gateway")
        async def echo(text: str = "") -> str:
            return text

        @app.action("wait", where="gateway")
        async def wait(seconds: float) -> str:
            await asyncio.sleep(seconds)
            return "waited"

        @app.action("push", where="gateway")
        async def push(count: int) -> None:
            for number in range(count):
                await app.push(number, session=current().client.session)

        @app.action("tell", where="gateway")
        async def tell(group: str) -> None:
            await app.push("hello", group=group)

        @app.action("empty", where="gateway")
        async def empty() -> None:
            with valkey_server.client() as redis:
                redis.flushall()

        @app.action("close", where="gateway")
        async def close(seconds: float) -> None:
            await app.inspector().close_queue("r")
            if seconds:
                asyncio.get_running_loop().call_later(
                    seconds, lambda: reopening.append(asyncio.ensure_future(reopen()))
                )

        async def reopen() -> None:
            await app.inspector().open_queue("r")

        @app.action("count", queue="r")
        async def count() -> int:
            ran.append(current().id)
            return len(ran)

        reopening: list[asyncio.Future[None]] = []
        async with app.worker("r"):
            yield app
        await asyncio.gather(*reopening)


@pytest.fixture
async def gateway(app: App, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    monkeypatch.setattr(maintenance, "SWEEP", 0.2)
    async with app.gateway(ws="127.0.0.1:0", quic="127.0.0.1:0", http="off", drain=0.1, may_join=_may_join) as made:
        yield made


def _url(gateway: Gateway, kind: str) -> str:
    return f"{kind}://{gateway.ws_address if kind == 'ws' else gateway.quic_address}"


@pytest.mark.parametrize("kind", ["ws", "quic"])
async def test_clients_begin_new_sessions_when_the_store_was_emptied(
    gateway: Gateway, app: App, valkey_server: RealServer, kind: str
) -> None:
    peers = [await connect(_url(gateway, kind), token=f"user{n}", **QUICK) for n in range(CLIENTS)]
    before = {peer.session for peer in peers}
    await peers[0].join("room")
    waiting = [peer.submit("wait", {"seconds": PATIENCE}) for peer in peers]
    await asyncio.gather(*(pending.accepted() for pending in waiting))
    with valkey_server.client() as redis:
        redis.flushall()
    for peer, pending in zip(peers, waiting, strict=True):
        assert await peer.receive(PATIENCE) == Discontinuity("unknown")
        with pytest.raises(RequestLost):
            await pending
        assert await peer.request("echo", {"text": "x"}) == "x"
    assert before.isdisjoint({peer.session for peer in peers})

    async def is_member() -> bool:
        return (await app.push("to the room", group="room")).queued == 1

    await until(is_member, what="the group of the new session")
    for peer in peers:
        await peer.close()


PROGRAM = """
import { connect } from '%s/veredus.js';
const [url, count] = process.argv.slice(1);
const sessions = await Promise.all(
  Array.from({ length: Number(count) }, (_, n) => connect(url, { token: `js${n}` })),
);
const before = sessions.map((session) => session.id);
console.log('connected');
const found = await Promise.all(sessions.map(async (session) => {
  const { value } = await session[Symbol.asyncIterator]().next();
  return [value.kind, value.reason, await session.request('echo', { text: 'x' })];
}));
console.log(JSON.stringify({ found, kept: sessions.filter((one, n) => one.id === before[n]).length }));
sessions.forEach((session) => session.close());
"""


async def test_all_clients_are_back_soon_after_the_store_was_emptied(app: App, valkey_server: RealServer) -> None:
    """Clients and a gateway as they are without any setting."""
    node = _node()
    async with app.gateway(ws="127.0.0.1:0", quic="127.0.0.1:0", http="off", drain=0.1) as gateway:
        program = await asyncio.create_subprocess_exec(
            node, "--input-type=module", "-e", PROGRAM % CLIENT.as_uri(), _url(gateway, "ws"), str(CLIENTS),
            env=_environment(node), stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert program.stdout is not None
        peers = [
            await connect(_url(gateway, kind), token=f"{kind}{n}") for kind in ("ws", "quic") for n in range(CLIENTS)
        ]
        before = {peer.session for peer in peers}
        assert await asyncio.wait_for(program.stdout.readline(), PATIENCE) == b"connected\n"
        began = asyncio.get_running_loop().time()
        with valkey_server.client() as redis:
            redis.flushall()

        async def back(peer: Peer) -> None:
            assert await peer.receive(PATIENCE) == Discontinuity("unknown")
            assert await peer.request("echo", {"text": "x"}) == "x"

        await asyncio.gather(*(back(peer) for peer in peers))
        said = json.loads(await asyncio.wait_for(program.stdout.readline(), PATIENCE))
        took = asyncio.get_running_loop().time() - began
        assert before.isdisjoint({peer.session for peer in peers})
        assert said == {"found": [["discontinuity", "unknown", "x"]] * CLIENTS, "kept": 0}
        print(f"3 x {CLIENTS} clients back {took:.1f} s after the store was emptied")
        assert took < (5.0 if FULL else PATIENCE)
        await asyncio.gather(*(peer.close() for peer in peers))
        await asyncio.wait_for(program.wait(), PATIENCE)


async def test_a_request_that_was_rejected_as_retryable_is_sent_again_and_runs_once(gateway: Gateway) -> None:
    async with connect(_url(gateway, "ws"), token="ada", retries=50, **QUICK) as peer:
        await peer.request("close", {"seconds": 0.3})
        assert await peer.request("count") == 1
        await peer.request("close", {"seconds": 0})
        refused = peer.submit("count", deadline=0.2)
        with pytest.raises(RequestRejected) as rejected:
            await refused
        assert (rejected.value.code, rejected.value.retryable) == (503, True)
    async with connect(_url(gateway, "ws"), token="ada", retries=0, **QUICK) as hasty:
        with pytest.raises(RequestRejected):
            await hasty.request("count")
        given_up = hasty.stats()["open_requests"], hasty._link.unanswered
        assert given_up == (0, 0)


async def test_a_join_during_an_outage_is_asked_for_again(
    gateway: Gateway, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = gateway.handshake._sessions
    join, failed = sessions.join, list[str]()

    async def fails_twice(sid: str, group: str) -> bool:
        if len(failed) < 2:
            failed.append(group)
            raise ConnectionLost("away")
        return await join(sid, group)

    monkeypatch.setattr(sessions, "join", fails_twice)
    async with connect(_url(gateway, "ws"), token="ada", **QUICK) as peer:
        await peer.join("room")
        assert len(failed) == 2
        await app.push("x", group="room")
        item = await peer.receive(PATIENCE)
        assert isinstance(item, Message)
        assert item.data == "x"
        failed.clear()
        peer.cut()  # joined again after the welcome, when nobody waits for the answer
        await until(lambda: len(failed) == 2)
        with pytest.raises(RequestRejected, match="not allowed"):
            await peer.join("secret")


async def test_the_javascript_client_with_a_real_gateway(gateway: Gateway) -> None:
    node = _node()
    where = {"VEREDUS_URL": _url(gateway, "ws"), "VEREDUS_CLIENT": f"{CLIENT.as_uri()}/veredus.js"}
    program = await asyncio.create_subprocess_exec(
        node, str(SCRIPT), env=_environment(node) | where,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(program.communicate(), 2 * PATIENCE)
    assert program.returncode == 0, out.decode()[-6000:]
