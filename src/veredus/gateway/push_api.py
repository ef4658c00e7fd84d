"""PushApi: HTTP for other services to push messages, list and end sessions, and check health."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from veredus.errors import ConfigError, PayloadError, StoreError
from veredus.gateway.config import ListenAddress
from veredus.gateway.http_forms import BadBody, read_disconnect, read_json, read_members, read_push, read_revoke
from veredus.gateway.http_server import DeadlineServer
from veredus.gateway.ports import tls_of
from veredus.model.delivery import PushResult, PushStatus, Spread
from veredus.model.hosts import is_address, is_loopback
from veredus.process.restarts import Restarts

if TYPE_CHECKING:
    from veredus.gateway.gateway import Gateway

logger = logging.getLogger("veredus.gateway")

MAX_PUSHES = 1000
_REFUSED = {
    PushStatus.FULL: "OUTBOX_FULL",
    PushStatus.GONE: "TARGET_GONE",
    PushStatus.TOO_LATE: "BIND_TOO_LATE",
}


class PushApi:
    """Runs inside the gateway's event loop."""

    def __init__(self, gateway: Gateway, place: ListenAddress, restarts: Restarts) -> None:
        self._gateway = gateway
        self._place = place
        self._restarts = restarts
        self._bound: socket.socket | None = None
        self._is_stopping = False
        self._serving: asyncio.Task[None] | None = None
        self._tls = tls_of(gateway.config) if gateway.config.http_speaks_tls else None
        if self._tls is None and not is_loopback(place.host):
            logger.warning("HTTP on %s is not encrypted: others on the network can read its token", place)

    async def start(self) -> ListenAddress:
        self._bound = _bind(self._place)
        self._place = ListenAddress(*self._bound.getsockname()[:2])
        gateway = self._gateway
        app = Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/push", self._push, methods=["POST"]),
                Route("/disconnect", self._disconnect, methods=["POST"]),
                Route("/revoke", self._revoke, methods=["POST"]),
                Route("/members", self._members),
                Route("/sessions", self._sessions),
                Route("/node", self._node),
            ]
        )
        self._token = gateway.config.http_token
        self._config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", timeout_keep_alive=30, ws="none"
        )
        self._server = self._new_server()
        running = self._restarts.keep("http server", self._serve, is_over=lambda: self._is_stopping)
        self._serving = asyncio.create_task(running)
        return self._place

    async def _serve(self) -> None:
        """Run a new server. The first run uses the socket that `start` bound; a restart binds again."""
        bound, self._bound = self._bound or _bind(self._place), None
        self._server = self._new_server()
        try:
            await self._server.serve(sockets=[bound])
        finally:
            for listener in self._server.servers:
                listener.close()
            bound.close()

    def _new_server(self) -> DeadlineServer:
        config = self._gateway.config
        return DeadlineServer(
            self._config, admission=self._gateway.addresses, tls=self._tls, timeout=config.http_timeout
        )

    async def stop(self) -> None:
        if self._serving is not None:
            self._is_stopping = True
            self._server.should_exit = True
            self._server.force_exit = True
            await asyncio.wait([self._serving], timeout=3.0)

    # Without a token.

    async def _healthz(self, request: Request) -> JSONResponse:
        return _health(self._gateway.problems())

    async def _readyz(self, request: Request) -> JSONResponse:
        return _health(self._gateway.not_ready())

    # With the token.

    async def _sessions(self, request: Request) -> JSONResponse:
        return self._refused(request) or JSONResponse(self._gateway.sessions())

    async def _node(self, request: Request) -> JSONResponse:
        return self._refused(request) or JSONResponse({"node": self._gateway.node, **self._gateway.figures()})

    async def _members(self, request: Request) -> JSONResponse:
        async def page() -> Any:
            asked = read_members(request.query_params)
            found = await self._gateway.app.members(**asked)
            rows = [{"session": one.sid, "user": one.user, "state": one.state, "node": one.node} for one in found]
            return {"members": rows, "after": found[-1].sid if len(found) == asked["limit"] else ""}

        return self._refused(request) or await _answered(page)

    async def _disconnect(self, request: Request) -> JSONResponse:
        async def end(given: Any) -> Any:
            return {"ended": await self._gateway.app.disconnect(**read_disconnect(given))}

        return await self._posted(request, end)

    async def _revoke(self, request: Request) -> JSONResponse:
        async def end(given: Any) -> Any:
            return {"ended": await self._gateway.app.revoke(**read_revoke(given))}

        return await self._posted(request, end)

    async def _push(self, request: Request) -> JSONResponse:
        async def push(given: Any) -> Any:
            many = isinstance(given, list)
            rows = given if many else [given]
            if len(rows) > MAX_PUSHES:
                raise BadBody(f"body: {len(rows)} pushes, at most {MAX_PUSHES} are allowed in one call")
            calls = [read_push(row, f"[{position}]." if many else "") for position, row in enumerate(rows)]
            answers = await asyncio.gather(*[self._one(call) for call in calls])
            return answers if many else answers[0]

        return await self._posted(request, push)

    async def _posted(self, request: Request, act: Callable[[Any], Awaitable[Any]]) -> JSONResponse:
        """Check the request, read its JSON body and act on it."""
        refused = self._refused(request)
        if refused is not None:
            return refused
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not self._token and kind != "application/json":  # browsers send other types cross-origin without asking
            text = f"content-type: got {kind!r}, expected application/json"
            return JSONResponse({"error": "unsupported_media_type", "message": text}, status_code=415)

        async def read_and_act() -> Any:
            return await act(await read_json(request))

        return await _answered(read_and_act)

    async def _one(self, call: dict[str, Any]) -> dict[str, Any]:
        """One push of a batch, with its own result."""
        payload = call.pop("payload")
        try:
            return answer_of(await self._gateway.app.push(payload, **call))
        except (ConfigError, PayloadError) as exc:
            return {"success": False, "error_code": "BAD_REQUEST", "message": str(exc)}
        except StoreError as exc:
            return {"success": False, "error_code": "UNAVAILABLE", "message": str(exc)}

    def _refused(self, request: Request) -> JSONResponse | None:
        """Check origin and token. Without a token only loopback is served (GatewayConfig ensures that), and no web page
        from another host."""
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._gateway.config.origins:
            return _forbidden(f"origin: {origin!r} is not one of the gateway's origins")
        if not self._token:
            host = request.url.hostname or ""
            return None if is_address(host) else _forbidden(f"host: {host!r} is not an address of this machine")
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode()):
            return None
        return JSONResponse(
            {"error": "unauthorized", "message": "send Authorization: Bearer <the gateway's http_token>"},
            status_code=401,
            headers={"www-authenticate": "Bearer"},
        )


def answer_of(result: PushResult | list[PushResult] | Spread) -> dict[str, Any]:
    """The response to a push: per session for a session or user, counts for a broadcast."""
    if isinstance(result, Spread):
        counts = {str(status): count for status, count in result.counts.items()}
        return {"success": True, "error_code": "", "message": "", "sent_count": result.queued, "results": counts}
    results = result if isinstance(result, list) else [result]
    rows = [{"session": one.session, "status": str(one.status), "seq": one.seq} for one in results]
    failed = next((one.status for one in results if not one.ok), None)
    success = any(one.ok for one in results)
    code = "" if success else _REFUSED.get(failed, "PUSH_FAILED") if failed is not None else "TARGET_GONE"
    return {
        "success": success,
        "error_code": code,
        "message": "" if success else f"not sent: {failed}",
        "results": rows,
    }


async def _answered(work: Callable[[], Awaitable[Any]]) -> JSONResponse:
    try:
        return JSONResponse(await work())
    except (BadBody, ConfigError) as exc:
        return _bad(str(exc))
    except ClientDisconnect:
        return _bad("body: the connection closed before its end")
    except StoreError as exc:
        return JSONResponse({"error": "unavailable", "message": str(exc)}, status_code=503)


def _bad(message: str) -> JSONResponse:
    return JSONResponse({"error": "bad_request", "message": message}, status_code=400)


def _forbidden(message: str) -> JSONResponse:
    return JSONResponse({"error": "forbidden", "message": message}, status_code=403)


def _health(problems: list[str]) -> JSONResponse:
    return JSONResponse({"ok": not problems, "problems": problems}, status_code=503 if problems else 200)


def _bind(place: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    bound = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # without the protocol, asyncio would leave Nagle on
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(tuple(place))
    except OSError as exc:
        bound.close()
        raise ConfigError("http", str(place), f"a free address ({exc.strerror})") from exc
    bound.setblocking(False)
    return bound
