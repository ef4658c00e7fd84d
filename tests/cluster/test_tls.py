"""TLS through terminating relays before every node of a cluster, and before the sentinels and their master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.cluster.conftest import Relayed
from tests.support.relays import CERTIFICATE, relayed, tls_context
from tests.support.sentinels import NAME, Sentinels
from tests.support.servers import free_port
from tests.support.waiting import PATIENCE
from veredus import App
from veredus.errors import ConnectionLost
from veredus.store.store import connect

CA = f"ssl_ca_certs={CERTIFICATE}"


async def _works(url: str, queues: list[str]) -> None:
    app = App(url)
    ran: list[int] = []

    @app.task(retention=60)
    async def double(n: int) -> int:
        ran.append(n)
        return 2 * n

    async with app, app.worker(queues):
        handles = [await double.using(queue=queue, delay=0.05).enqueue(n) for n, queue in enumerate(queues)]
        assert await asyncio.gather(*[handle.result(PATIENCE) for handle in handles]) == [
            2 * n for n in range(len(queues))
        ]


async def _is_refused(url: str) -> None:
    redis = connect(url, timeout=2.0)
    with pytest.raises(ConnectionLost, match=r"TLS.*(?i:certificate)"):
        await redis.command("PING", key="")
    await redis.close()


async def test_a_cluster(relayed_cluster: Relayed) -> None:
    """The addresses that the nodes give are IP addresses: the certificate must have those."""
    url = relayed_cluster.url("rediss+cluster")
    async with relayed(relayed_cluster.ports, tls=tls_context()):
        await _works(f"{url}?{CA}", relayed_cluster.nodes.spread(6))
        await _is_refused(url)
        assert connect(f"{url}?{CA}").where() == url
        plain = connect(relayed_cluster.url(), timeout=1.0)
        with pytest.raises(ConnectionLost):
            await plain.command("PING", key="")
        await plain.close()


async def test_sentinels_and_their_master(new_sentinels: Callable[..., Sentinels]) -> None:
    """The sentinel knows the master by the relay that speaks TLS: it is told so only once everything runs."""
    sentinels = new_sentinels(replicas=0, sentinels=1)
    sentinel, master = sentinels.sentinels[0], sentinels.master()
    before_sentinel, before_master = free_port(), free_port()
    async with relayed({before_sentinel: sentinel.port, before_master: master.port}, tls=tls_context()):
        client = sentinel.client()
        client.execute_command("SENTINEL", "REMOVE", NAME)
        client.execute_command("SENTINEL", "MONITOR", NAME, "127.0.0.1", before_master, 1)
        hosts = f"127.0.0.1:{before_sentinel}/{NAME}"
        await _works(f"rediss+sentinel://{hosts}?{CA}", ["a", "b"])
        await _is_refused(f"rediss+sentinel://{hosts}")
        # Sentinels that speak plainly, a master that does not.
        await _works(f"rediss+sentinel://127.0.0.1:{sentinel.port}/{NAME}?{CA}&sentinel_tls=no", ["a"])
