"""Gateway: puts the parts together, opens the ports, and closes them without losing anybody."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import socket
from typing import TYPE_CHECKING, Any, Self

from veredus import forks
from veredus.client.client import Client
from veredus.clock import ServerClock
from veredus.errors import GatewayError, StoreError
from veredus.gateway.addresses import Addresses, Allowance
from veredus.gateway.config import (
    ADDRESS_CONNECTIONS,
    ADDRESS_HANDSHAKES,
    ADDRESS_SESSIONS,
    Endpoint,
    GatewayConfig,
)
from veredus.gateway.connection import Connection
from veredus.gateway.delivery import Delivery
from veredus.gateway.handlers import Handlers
from veredus.gateway.health import Signs, not_ready, problems
from veredus.gateway.lifecycle import Lifecycle
from veredus.gateway.limits import Overload
from veredus.gateway.ports import Ports
from veredus.gateway.reception import Reception
from veredus.gateway.routing import Router
from veredus.gateway.upkeep import TICK, Upkeep
from veredus.link.config import LinkConfig
from veredus.link.server import ServerLink
from veredus.link.transports.base import Transport
from veredus.model.frames import CloseCode, Hello, Request
from veredus.restarts import Restarts
from veredus.store.hints import Hints
from veredus.store.store import Store
from veredus.worker.announcement import warn_of_eviction
from veredus.worker.complaints import Complaints
from veredus.worker.lifespan import close, open_lifespan
from veredus.worker.mux import Mux
from veredus.worker.requests import Requests

if TYPE_CHECKING:
    from veredus.gateway.http import HttpServer

logger = logging.getLogger("veredus.gateway")

LAST_WORDS = 2.0
"""Seconds for which a stop waits until the last words to its clients are out."""


class Gateway:
    """Serves clients. `run()` blocks and handles signals; `async with gateway:` runs it inside your own loop."""

    delivery: Delivery

    def __init__(self, app: Any, config: GatewayConfig, *, index: int = 0) -> None:
        self.app = app
        self.config = config
        self.index = index
        """Which of several processes this is: its ports of QUIC and HTTP are shifted by it."""
        self.node = f"{socket.gethostname()[:40] or 'host'}-{os.getpid()}-{secrets.token_hex(4)}"
        self.ports: Ports | None = None
        self.http_address: Endpoint | None = None
        self.draining = False
        self._started = False
        self._stopped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._http: HttpServer | None = None

    def run(self) -> int:
        """Serve until stopped by a signal; returns the exit code."""
        from veredus.gateway.processes import run_gateway, run_several

        return run_several(self) if self.config.processes > 1 else run_gateway(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop(drain=0.0)

    # Starting.

    async def start(self) -> None:
        """Connect and listen. Raises StoreError when Redis cannot be reached."""
        if self._started:
            raise GatewayError("this gateway was started before; make a new one")
        forks.end_in(asyncio.get_running_loop())
        self._started = True
        self._clock = ServerClock()
        redis = self.app.open_redis(f"veredus-gateway-{self.node[-8:]}")
        self._store = Store(redis, patience=3.0)
        try:
            await self._store.set_clock(self._clock)
            await warn_of_eviction(self._store)
            self._lifespan = contextlib.AsyncExitStack()
            if self.app.lifespan is not None and any(rule.where == "gateway" for rule in self.app.actions.values()):
                await open_lifespan(self.app, self._lifespan)
            self._compose()
            self._tasks.append(asyncio.create_task(self._restarts.keep("hints", self._hints.run, longest=2.0)))
            await self._hints.subscribed()
            await self.upkeep.beat()
            await self._open_ports()
            await self.upkeep.beat()  # with the addresses
        except BaseException:
            await self._abandon()
            raise
        self._tasks += self.upkeep.start()
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

    def _compose(self) -> None:
        config, store, clock = self.config, self._store, self._clock
        self._complaints = Complaints()
        self._restarts = Restarts()
        self.overload = Overload(
            connections=config.max_connections,
            request_rate=config.max_request_rate,
            upstream=config.max_upstream,
            warn_share=config.warn_share,
        )
        self.addresses = Addresses(
            connections=Allowance(config.address_connections, ADDRESS_CONNECTIONS),
            handshakes=Allowance(config.address_handshakes, ADDRESS_HANDSHAKES),
            sessions=Allowance(config.address_sessions, ADDRESS_SESSIONS),
            proxies=config.trusted_proxies,
            clock=clock,
            refused=self.overload.refused,
        )
        requests = Requests(store.outbox, clock)
        mux = Mux(self.app.tasks, self.app.patterns, self.app.middlewares)
        self._handlers = Handlers(mux, requests, clock, config.handlers)
        client = Client(store, max_payload=self.app.max_payload, clock=clock)
        self.router = Router(
            config, self.app.actions, self.app.tasks, store, client, requests, self._handlers, self.overload, clock
        )
        shortest = min(config.heartbeat, config.pong, config.hello_timeout, config.cleanup_interval, 5.0)
        self.delivery = Delivery(
            store.outbox,
            store.sessions,
            clock,
            self._complaints,
            self._restarts,
            node=self.node,
            position_check=config.position_check,
            tick=max(shortest / 2, TICK),
            answered=self.router.answered,
        )
        self.router.delivery = self.delivery
        self._lifecycle = Lifecycle(config, self.node, self._complaints)
        self._reception = Reception(
            config, self.node, store.sessions, self.delivery, self.addresses, self._lifecycle, clock
        )
        self._hints = Hints(
            store.redis, self.node, self.delivery.hinted, self.delivery.look_at_all, probe_every=config.probe
        )
        self._link_config = LinkConfig(
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
        self.upkeep = Upkeep(
            self.node,
            store,
            self.delivery,
            self.router,
            self.overload,
            self._hints,
            clock,
            self._complaints,
            self._restarts,
            self.figures,
        )

    async def _open_ports(self) -> None:
        self.ports = Ports(
            self.config, self.index, self.overload, self.addresses, self._clock, lambda: Connection(self)
        )
        await self.ports.listen()
        if self.config.http is not None:
            from veredus.gateway.http import HttpServer

            self._http = HttpServer(self, self.config.http.shifted(self.index), self._restarts)
            self.http_address = await self._http.start()

    @property
    def ws_address(self) -> Endpoint | None:
        """Where it really listens, once started."""
        return self.ports.ws if self.ports is not None else None

    @property
    def quic_address(self) -> Endpoint | None:
        return self.ports.quic if self.ports is not None else None

    # What connections ask for.

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

    def admitted(self, connection: Connection) -> str:
        self.overload.connections += 1
        self.delivery.opened(connection)
        if self.overload.connections > self.config.max_connections:
            self.overload.refused["connections"] += 1
            return "too many connections"
        return ""

    def left(self, connection: Connection) -> None:
        self.overload.connections -= 1
        self.delivery.left(connection)
        self._lifecycle.left(connection)

    def hello(self, connection: Connection, frame: Hello) -> None:
        self._reception.hello(connection, frame)

    def authenticate(self, connection: Connection, token: str) -> None:
        self._reception.authenticate(connection, token)

    def request(self, connection: Connection, frame: Request) -> None:
        self.router.request(connection, frame)

    def cancel(self, connection: Connection, rid: int) -> None:
        self.router.cancel(connection, rid)

    def join(self, connection: Connection, group: str, joins: bool) -> None:
        self._reception.join(connection, group, joins)

    def bye(self, connection: Connection) -> None:
        self._reception.bye(connection)

    # Looking.

    def problems(self) -> list[str]:
        """Why clients do not get what they should; empty if they do."""
        return problems(self._signs())

    def not_ready(self) -> list[str]:
        return not_ready(self._signs())

    def _signs(self) -> Signs:
        ready = self.ports is not None and self.ports.open
        return self.upkeep.signs(draining=self.draining, listening=ready)

    def figures(self) -> dict[str, Any]:
        """What the others and the tools see of this node."""
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
            "restarts": dict(self._restarts.counts),
            "draining": self.draining,
        }

    def sessions(self) -> list[dict[str, object]]:
        """The sessions attached here, each with the eight statistics of its queue."""
        return [connection.statistics() | {"node": self.node} for connection in self.delivery.attached.values()]

    # Stopping.

    def request_stop(self) -> None:
        self._stopped.set()

    async def wait(self) -> None:
        """Until a stop is requested."""
        await self._stopped.wait()

    async def stop(self, *, drain: float | None = None) -> None:
        """Accept nobody any more, send the clients elsewhere one after the other, answer what runs here."""
        if not self._started:
            return
        self._stopped.set()
        self.draining = True
        if self.ports is not None:
            await self.ports.close()
        await self._drain(self.config.drain if drain is None else drain)
        await self.router.close(1.0)
        await self._reception.close()
        await self._lifecycle.close()
        await self.delivery.close()
        await self._abandon()

    async def _drain(self, seconds: float) -> None:
        """Each client learns of it at once and is closed at a time of its own, so that not all come together."""
        now = self._clock.monotonic()
        waiting = list(self.delivery.connections)
        random.shuffle(waiting)
        for connection in waiting:
            if not connection.over:
                connection.link.go_away(round(seconds * 1000), "drain", now)
                self.delivery.touch(connection)
        if waiting:
            logger.info("draining: %d connections are moved over %g s", len(waiting), seconds)
        for position, connection in enumerate(waiting):
            at = now + seconds * (position + 1) / len(waiting)
            if not connection.over:
                await asyncio.sleep(max(0.0, at - self._clock.monotonic()))
            connection.end(CloseCode.GOING_AWAY, "this gateway stops", retry_after_ms=random.randrange(500))
        for _ in range(round(LAST_WORDS / 0.02)):
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
        if hasattr(self, "_handlers"):
            self._handlers.close()
            with contextlib.suppress(StoreError):
                await self._store.nodes.leave(self.node)
                await self._store.sessions.sweep()  # there may be no other gateway to forget this one
        if hasattr(self, "_lifespan"):
            await close(self._lifespan, "the lifespan")
        await self._store.close()
