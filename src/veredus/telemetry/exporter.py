"""A Prometheus exporter for all queues and gateway nodes of a Redis server."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from veredus.app import App
from veredus.errors import StoreError
from veredus.inspector.inspector import Inspector
from veredus.store.connection.redis import Redis
from veredus.store.sessions.gateway_nodes import GatewayNodes
from veredus.telemetry.gateway_metrics import read_gateway
from veredus.telemetry.probe_server import TEXT, Page, ProbeServer, verdict
from veredus.telemetry.queue_metrics import read_queues


def exporter(redis: Redis, port: int, *, host: str = "127.0.0.1", memory: bool = False) -> ProbeServer:
    """`async with exporter(app.open_redis(), 9876)` runs it inside your process."""
    inspector, nodes = Inspector(redis), GatewayNodes(redis)

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
    return ProbeServer(port, pages, host=host)


async def serve(app: App, port: int, *, host: str = "127.0.0.1", memory: bool = False) -> None:
    """Serve until SIGTERM or SIGINT."""
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
