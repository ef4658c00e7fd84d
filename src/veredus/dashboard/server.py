"""Serves the dashboard on its own port, for `veredus dash`."""

from __future__ import annotations

import asyncio
import socket
from types import FrameType

import uvicorn

from veredus.dashboard.dashboard import Dashboard
from veredus.errors import ConfigError


class DashboardServer:
    """Binds its port in the constructor, so that the printed address is valid."""

    def __init__(self, dashboard: Dashboard, host: str, port: int) -> None:
        self.dashboard = dashboard
        self._socket = _bind(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            dashboard,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=2,
        )
        self._server = _Server(config)
        self._server.dashboard = dashboard

    @property
    def address(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"

    @property
    def login_address(self) -> str:
        """The part after # never leaves the browser."""
        return f"{self.address}#token={self.dashboard.config.token}"

    def run(self) -> None:
        """Until SIGINT or SIGTERM."""
        asyncio.run(self.serve())

    async def serve(self) -> None:
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        self._server.handle_exit(0, None)


class _Server(uvicorn.Server):
    """Ends the live streams when the server stops; they would never end by themselves."""

    dashboard: Dashboard

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.dashboard.stop_streams()
        super().handle_exit(sig, frame)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only if the protocol is given; with it, every response takes 40 ms longer.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(128)  # a browser that is faster than the server waits instead of being refused
    except (OSError, OverflowError) as exc:
        bound.close()
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise ConfigError("listen", f"{host}:{port}", f"a free address: {reason}") from exc
    return bound
