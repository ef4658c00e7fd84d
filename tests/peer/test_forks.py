"""A fork has a copy of its parent's peer, and must not speak for it."""

from __future__ import annotations

import asyncio

from tests.peer.conftest import QUICK
from tests.peer.scripted import ScriptedGateway
from tests.support.forks import in_a_fork
from veredus.peer import SessionClosed, connect


async def test_a_fork_cannot_use_the_session_of_its_parent_but_may_connect(either: ScriptedGateway) -> None:
    async with connect(either.url, token="ada", **QUICK) as peer:
        line = peer._reconnector

        async def use() -> list[str]:
            said = []
            for call in (lambda: peer.request("echo", 1), peer.receive, peer.wait_closed, peer.__aenter__):
                try:
                    await call()
                except SessionClosed as exc:
                    said.append(str(exc))
            await peer.close()
            line.cut()
            async with connect(either.url, token="bob", **QUICK) as own:
                said.append(await own.request("echo", "of the fork"))
            return said

        said = await in_a_fork(lambda: asyncio.run(use()))
        assert said[4:] == ["of the fork"]
        assert all("call connect() again after a fork" in text for text in said[:4])
        assert await peer.request("echo", "of the parent") == "of the parent"
        assert [hello.token for hello in either.hellos] == ["ada", "bob"]


async def test_a_peer_that_was_not_started_may_be_started_in_a_fork(gateway: ScriptedGateway) -> None:
    peer = connect(gateway.url, token="ada", **QUICK)

    async def use() -> str:
        async with peer:
            return str(await peer.request("echo", "of the fork"))

    assert await in_a_fork(lambda: asyncio.run(use())) == "of the fork"
