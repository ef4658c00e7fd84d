"""Gateway: builds the parts, opens the ports, and drains its clients at a stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket
from typing import TYPE_CHECKING, Any, Self

from veredus.client.client import Client
from veredus.clock import ServerClock
from veredus.errors import GatewayError, StoreError
from veredus.gateway.address_limits import AddressLimits, Allowance
from veredus.gateway.client_connection import ClientConnection
from veredus.gateway.client_hooks import ClientHooks
from veredus.gateway.config import (
    ADDRESS_CONNECTIONS,
    ADDRESS_HANDSHAKES,
    ADDRESS_SESSIONS,
    GatewayConfig,
    ListenAddress,
)
from veredus.gateway.delivery import Delivery
from veredus.gateway.handshake import Handshake
from veredus.gateway.health import GatewaySigns, not_ready, problems
from veredus.gateway.limits import Overload
from veredus.gateway.local_actions import LocalActions
from veredus.gateway.maintenance import Maintenance
from veredus.gateway.open_requests import OpenRequests
from veredus.gateway.ports import Ports
from veredus.gateway.router import RequestRouter
from veredus.gateway.services import Services
from veredus.handlers.lifespan import close, open_lifespan
from veredus.handlers.mux import Mux
from veredus.handlers.request_answers import RequestAnswers
from veredus.link.config import LinkConfig
from veredus.link.server import ServerLink
from veredus.link.transports.base import Transport
from veredus.model.frames import CloseCode
from veredus.process import forks
from veredus.process.outage_log import OutageLog
from veredus.process.restarts import Restarts
from veredus.store.sessions.hints import Hints
from veredus.store.store import Store, warn_of_eviction

if TYPE_CHECKING:
    from veredus.gateway.push_api import PushApi

logger = logging.getLogger("veredus.gateway")

CLOSE_TIMEOUT = 2.0
"""Seconds for which a stop waits until its connections have closed."""


class Gateway:
    """Serves clients. `run()` blocks and handles signals; `async with gateway:` runs it inside your own loop."""

    delivery: Delivery
    router: RequestRouter
    handshake: Handshake
    overload: Overload

    def __init__(self, app: Any, config: GatewayConfig, *, index: int = 0) -> None:
        self.app = app
        self.config = config
        self.index = index
        """The number of this process among several. It is added to the ports of QUIC and HTTP."""
        self.node = f"{socket.gethostname()[:40] or 'host'}-{os.getpid()}-{secrets.token_hex(4)}"
        self.ports: Ports | None = None
        self.http_address: ListenAddress | None = None
        self.draining = False
        self.serving = False
        """Whether clients can connect, or could: from then on only `stop` ends the gateway."""
        self._started = False
        self._stopped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._http: PushApi | None = None

    def run(self) -> int:
        """Serve until stopped by a signal; returns the exit code."""
        from veredus.gateway.supervisor import run_gateway, run_several

        return run_several(self) if self.config.processes > 1 else run_gateway(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop(drain=0.0)

    # Starting.

    async def start(self) -> None:
        """Connect to Redis and listen. Raises StoreError if Redis cannot be reached."""
        if self._started:
            raise GatewayError("a gateway can be started only once; make a new one")
        forks.end_in(asyncio.get_running_loop())
        self._started = True
        self._clock = ServerClock()
        redis = self.app.open_redis(f"veredus-gateway-{self.node[-8:]}")
        self._store = Store(redis, patience=3.0, max_lengths=self.app.max_lengths)
        try:
            await self._store.set_clock(self._clock)
            await warn_of_eviction(self._store)
            self._lifespan = contextlib.AsyncExitStack()
            if self.app.lifespan is not None and any(rule.where == "gateway" for rule in self.app.actions.values()):
                await open_lifespan(self.app, self._lifespan)
            self._compose()
            self._tasks.append(asyncio.create_task(self._services.restarts.keep("hints", self._hints.run, longest=2.0)))
            await self._hints.subscribed()
            await self.maintenance.beat()
            await self._open_ports()
        except BaseException:
            await self._abandon()
            raise
        self.serving = True
        self._tasks += self.maintenance.start()
        logger.info(
            "gateway %s serves %s on %s",
            self.node,
            ", ".join(
                f"{name} {address}"
                for name, address in (("ws", self.ws_address), ("quic", self.quic_address), ("http", self.http_address))
                if address is not None
            ),
            redis.where(),
        )
        with contextlib.suppress(StoreError):  # the next heartbeat does it
            await self.maintenance.beat()  # with the addresses

    def _compose(self) -> None:
        config, store, clock = self.config, self._store, self._clock
        self.overload = Overload(
            connections=config.max_connections,
            request_rate=config.max_request_rate,
            upstream=config.max_upstream,
            warn_share=config.warn_share,
        )
        self.addresses = AddressLimits(
            connections=Allowance(config.address_connections, ADDRESS_CONNECTIONS),
            handshakes=Allowance(config.address_handshakes, ADDRESS_HANDSHAKES),
            sessions=Allowance(config.address_sessions, ADDRESS_SESSIONS),
            proxies=config.trusted_proxies,
            clock=clock,
            refused=self.overload.refused,
        )
        self._services = Services(
            config=config,
            node=self.node,
            store=store,
            clock=clock,
            overload=self.overload,
            addresses=self.addresses,
            outages=OutageLog(),
            restarts=Restarts(),
        )
        self._link_config = _link_config(config)
        open_requests = OpenRequests(self.overload, clock)
        self.delivery = Delivery(self._services, open_requests)
        answers = RequestAnswers(store.outbox, clock)
        mux = Mux(self.app.tasks, self.app.patterns, self.app.middlewares)
        self._local_actions = LocalActions(mux, answers, clock, config.handlers)
        self.router = RequestRouter(
            self._services,
            self.app.actions,
            self.app.tasks,
            Client(store, max_payload=self.app.max_payload, clock=clock),
            answers,
            self._local_actions,
            self.delivery,
            open_requests,
        )
        self._hooks = ClientHooks(config, self.node, self._services.outages)
        self.handshake = Handshake(self._services, self.delivery, self._hooks)
        self._hints = Hints(
            store.redis, self.node, self.delivery.on_hints, self.delivery.check_all, probe_every=config.probe
        )
        self.maintenance = Maintenance(self._services, self.delivery, self.router, self._hints, self.figures)

    async def _open_ports(self) -> None:
        self.ports = Ports(self._services, self.index, lambda: ClientConnection(self))
        await self.ports.listen()
        if self.config.http is not None:
            from veredus.gateway.push_api import PushApi

            self._http = PushApi(self, self.config.http.shifted(self.index), self._services.restarts)
            self.http_address = await self._http.start()

    @property
    def ws_address(self) -> ListenAddress | None:
        """The real address of the listener, once started."""
        return self.ports.ws if self.ports is not None else None

    @property
    def quic_address(self) -> ListenAddress | None:
        return self.ports.quic if self.ports is not None else None

    # Called by connections (ConnectionOwner).

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def open_link(self, transport: Transport, now: float) -> ServerLink:
        return ServerLink(
            transport.encoding,
            self._link_config,
            now,
            jitter=random.uniform(-0.1, 0.1),
            whole_messages=transport.kind == "websocket",
        )

    def opened(self, connection: ClientConnection) -> str:
        self.overload.connections += 1
        self.delivery.opened(connection)
        if self.overload.connections > self.config.max_connections:
            self.overload.refused["connections"] += 1
            return "too many connections"
        return ""

    def closed(self, connection: ClientConnection) -> None:
        self.overload.connections -= 1
        self.delivery.left(connection)
        self._hooks.left(connection)

    # Health and figures.

    def problems(self) -> list[str]:
        """Why delivery does not work; empty if it works."""
        return problems(self._signs())

    def not_ready(self) -> list[str]:
        return not_ready(self._signs())

    def _signs(self) -> GatewaySigns:
        ready = self.ports is not None and self.ports.open
        return self.maintenance.signs(draining=self.draining, listening=ready)

    def figures(self) -> dict[str, Any]:
        """The figures of this node that other gateways and the tools see."""
        now = self._clock.monotonic()
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "ws": str(self.ws_address or ""),
            "quic": str(self.quic_address or ""),
            "http": str(self.http_address or ""),
            "http_tls": self.config.http_speaks_tls,
            "connections": self.overload.connections,
            "sessions": len(self.delivery.attached),
            "requests_per_second": round(self.overload.request_rate(now), 1),
            "open_requests": len(self.router.open),
            "refused": dict(self.overload.refused),
            "delivery": dict(self.delivery.counters),
            "requests": dict(self.router.counters),
            "restarts": dict(self._services.restarts.counts),
            "draining": self.draining,
        }

    def sessions(self) -> list[dict[str, object]]:
        """The sessions attached here, each with the eight statistics of its queue."""
        return [connection.statistics() | {"node": self.node} for connection in self.delivery.attached.values()]

    # Stopping.

    def request_stop(self) -> None:
        self._stopped.set()

    async def wait(self) -> None:
        """Wait until a stop is requested."""
        await self._stopped.wait()

    async def stop(self, *, drain: float | None = None) -> None:
        """Close the ports, move the clients to other gateways one by one, and answer the local requests."""
        if not self._started:
            return
        self._stopped.set()
        self.draining = True
        if self.ports is not None:
            await self.ports.close()
        await self._drain(self.config.drain if drain is None else drain)
        await self.router.close(1.0)
        await self.handshake.close()
        await self._hooks.close()
        await self.delivery.close()
        await self._abandon()

    async def _drain(self, seconds: float) -> None:
        """Announce the stop to all clients at once, but close their connections over time, so that they do not all
        reconnect together."""
        now = self._clock.monotonic()
        waiting = list(self.delivery.connections)
        random.shuffle(waiting)
        for connection in waiting:
            if not connection.over:
                connection.link.go_away(round(seconds * 1000), "drain", now)
                self.delivery.touch(connection)
        if waiting:
            logger.info("draining: closing %d connections over %g s", len(waiting), seconds)
        for position, connection in enumerate(waiting):
            at = now + seconds * (position + 1) / len(waiting)
            if not connection.over:
                await asyncio.sleep(max(0.0, at - self._clock.monotonic()))
            connection.end(CloseCode.GOING_AWAY, "this gateway is stopping", retry_after_ms=random.randrange(500))
        for _ in range(round(CLOSE_TIMEOUT / 0.02)):
            if not self.delivery.connections:
                break
            await asyncio.sleep(0.02)
        for connection in list(self.delivery.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    async def _abandon(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        if self.ports is not None:
            await self.ports.close()
        if self._http is not None:
            await self._http.stop()
        if hasattr(self, "_local_actions"):
            self._local_actions.close()
            with contextlib.suppress(StoreError):
                await self._store.nodes.leave(self.node)
                await self._store.sessions.sweep()  # there may be no other gateway to do it
        if hasattr(self, "_lifespan"):
            await close(self._lifespan, "the lifespan")
        await self._store.close()


def _link_config(config: GatewayConfig) -> LinkConfig:
    return LinkConfig(
        window_messages=config.window_messages,
        window_bytes=config.window_bytes,
        heartbeat=config.heartbeat,
        pong=config.pong,
        hello_timeout=config.hello_timeout,
        message_timeout=config.message_timeout,
        max_retries=config.max_retries,
        cleanup_interval=config.cleanup_interval,
        max_queue_size=config.max_queue_size,
        max_frame=config.max_frame,
        frame_rate=config.request_rate * 10,
        frame_burst=config.request_burst * 10,
        ack_rate=config.ack_rate,
        ack_burst=max(1, round(config.ack_rate * 2)),
        max_open_requests=config.open_requests,
    )
