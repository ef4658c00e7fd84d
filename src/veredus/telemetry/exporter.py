"""An exporter by itself: the queues and gateway nodes of a server for Prometheus, whoever works on them."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from veredus.app import App
from veredus.errors import StoreError
from veredus.inspector.inspector import Inspector
from veredus.store.nodes import Nodes
from veredus.store.redis import Redis
from veredus.telemetry.endpoint import TEXT, Endpoint, Page, verdict
from veredus.telemetry.gateway_metrics import read_gateway
from veredus.telemetry.queue_metrics import read_queues


def exporter(redis: Redis, port: int, *, host: str = "127.0.0.1", memory: bool = False) -> Endpoint:
    """`async with exporter(app.open_redis(), 9876)` serves it inside your own process."""
    inspector, nodes = Inspector(redis), Nodes(redis)

    async def metrics() -> tuple[int, str, bytes]:
        return 200, TEXT, await read_queues(inspector, memory=memory) + await read_gateway(nodes)

    async def alive() -> tuple[int, str, bytes]:
        return verdict([])

    async def ready() -> tuple[int, str, bytes]:
        try:
            await inspector.queues()
        except StoreError as exc:
            return verdict([str(exc)])
        return verdict([])

    pages: dict[str, Page] = {"/metrics": metrics, "/healthz": alive, "/readyz": ready}
    return Endpoint(port, pages, host=host)


async def serve(app: App, port: int, *, host: str = "127.0.0.1", memory: bool = False) -> None:
    """Until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, stopped.set)
    redis = app.open_redis("veredus-metrics")
    try:
        async with exporter(redis, port, host=host, memory=memory):
            await stopped.wait()
    finally:
        await redis.close()
