"""The gateway on Valkey, on Redis 6.2 and on a cluster, where sessions and queues have slots of their own."""

from __future__ import annotations

from tests.gateway.support import JsonClient, gateway
from tests.support.clusters import Nodes
from tests.support.servers import RealServer
from tests.support.waiting import until
from veredus import App, current


async def test_one_server(server: RealServer) -> None:
    await _pushes_requests_and_resumes(server.url)


async def test_three_masters_with_sharded_hints(nodes: Nodes) -> None:
    await _pushes_requests_and_resumes(nodes.url)


async def _pushes_requests_and_resumes(url: str) -> None:
    async with App(url) as app:

        @app.action("work", queue="r")
        async def work(n: int) -> int:
            await current().client.notify(n, type="progress")
            await current().client.notify(n, type="after", when="after")
            return n

        async with gateway(app) as one, gateway(app) as two, app.worker("r"):
            clients = [await JsonClient.open(one, f"user{n}") for n in range(6)]
            assert len({client.sid[:4] for client in clients}) > 1
            for number, client in enumerate(clients):
                await client.request(1, "work", {"n": number})
                assert [message["body"] for message in await client.take(3)] == [number] * 3
                await client.ack(rid_floor=1)
                client.cut()
            await until(lambda: not one.delivery.connections)
            for number, client in enumerate(clients):
                await app.push(number, session=client.sid)
            assert (await app.push("all", everyone=True)).queued == 6
            for number, client in enumerate(clients):
                again = await JsonClient.open(two, f"user{number}", client.resumption())
                assert again.welcome["result"] == "resumed"
                assert [message["body"] for message in await again.take(2)] == [number, "all"]
                await app.push("live", user=f"user{number}")
                assert (await again.take(1))[0]["seq"] == 6
