"""The door for other services: push, list sessions, ask for health. The only place that knows starlette."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from veredus.errors import ConfigError, PayloadError, StoreError, VeredusError
from veredus.gateway.config import Endpoint
from veredus.gateway.http_server import PatientServer
from veredus.gateway.ports import tls_of
from veredus.model.delivery import PushResult, Spread, Status, SyncHint
from veredus.model.hosts import is_address, is_loopback
from veredus.model.nesting import MAX_DEPTH, too_deep
from veredus.restarts import Restarts

if TYPE_CHECKING:
    from veredus.gateway.server import Gateway

logger = logging.getLogger("veredus.gateway")

MAX_BODY = 8 * 1024 * 1024
MAX_PUSHES = 1000
TARGETS = ("session", "user", "openid", "group", "everyone")
HINTS = {
    "IMMEDIATE": SyncHint.IMMEDIATE,
    "BEFORE_RESPONSE": SyncHint.BEFORE_RESPONSE,
    "AFTER_RESPONSE": SyncHint.AFTER_RESPONSE,
}
FIELDS = {
    "target_type", "target_id", "msg_type", "title", "content", "data", "data64", "metadata", "sync_hint",
    "bind_client_seq_id", "ttl", "dedupe_key", "wait", "late", "on_fail",
}  # fmt: skip
_REFUSED = {
    Status.FULL: "OUTBOX_FULL",
    Status.GONE: "TARGET_GONE",
    Status.TOO_LATE: "BIND_TOO_LATE",
}


class BadPush(VeredusError):
    """A field of a push request is wrong; the text names it."""


class HttpServer:
    """Runs inside the gateway's event loop."""

    def __init__(self, gateway: Gateway, place: Endpoint, restarts: Restarts) -> None:
        self._gateway = gateway
        self._place = place
        self._restarts = restarts
        self._bound: socket.socket | None = None
        self._is_stopping = False
        self._serving: asyncio.Task[None] | None = None
        self._tls = tls_of(gateway.config) if gateway.config.http_speaks_tls else None
        if self._tls is None and not is_loopback(place.host):
            logger.warning("HTTP on %s is not encrypted: its token can be read on the way", place)

    async def start(self) -> Endpoint:
        self._bound = _bind(self._place)
        self._place = Endpoint(*self._bound.getsockname()[:2])
        gateway = self._gateway
        app = Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/push", self._push, methods=["POST"]),
                Route("/sessions", self._sessions),
                Route("/node", self._node),
            ]
        )
        self._token = gateway.config.http_token
        self._config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=30, ws="none"
        )
        self._server = self._new_server()
        running = self._restarts.keep("http server", self._serve, is_over=lambda: self._is_stopping)
        self._serving = asyncio.create_task(running)
        return self._place

    async def _serve(self) -> None:
        """Each time a server of its own; the first has the socket that was bound at the start."""
        bound, self._bound = self._bound or _bind(self._place), None
        self._server = self._new_server()
        try:
            await self._server.serve(sockets=[bound])
        finally:
            for listener in self._server.servers:
                listener.close()
            bound.close()

    def _new_server(self) -> PatientServer:
        config = self._gateway.config
        return PatientServer(self._config, keeper=self._gateway.addresses, tls=self._tls, timeout=config.http_timeout)

    async def stop(self) -> None:
        if self._serving is not None:
            self._is_stopping = True
            self._server.should_exit = True
            self._server.force_exit = True
            await asyncio.wait([self._serving], timeout=3.0)

    # What anybody may ask.

    async def _healthz(self, request: Request) -> JSONResponse:
        return _health(self._gateway.problems())

    async def _readyz(self, request: Request) -> JSONResponse:
        return _health(self._gateway.not_ready())

    # What needs the token.

    async def _sessions(self, request: Request) -> JSONResponse:
        return self._refused(request) or JSONResponse(self._gateway.sessions())

    async def _node(self, request: Request) -> JSONResponse:
        return self._refused(request) or JSONResponse({"node": self._gateway.node, **self._gateway.figures()})

    async def _push(self, request: Request) -> JSONResponse:
        refused = self._refused(request)
        if refused is not None:
            return refused
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not self._token and kind != "application/json":  # other types, web pages may send anywhere unasked
            text = f"content-type: got {kind!r}, expected application/json"
            return JSONResponse({"error": "unsupported_media_type", "message": text}, status_code=415)
        try:
            given = await _json(request)
        except BadPush as exc:
            return _bad(str(exc))
        except ClientDisconnect:
            return _bad("body: the connection was closed before its end")
        many = isinstance(given, list)
        rows = given if many else [given]
        if len(rows) > MAX_PUSHES:
            return _bad(f"body: {len(rows)} pushes, at most {MAX_PUSHES} are allowed in one call")
        try:
            calls = [read_push(row, f"[{position}]." if many else "") for position, row in enumerate(rows)]
        except BadPush as exc:
            return _bad(str(exc))
        answers = await asyncio.gather(*[self._one(call) for call in calls])
        return JSONResponse(answers if many else answers[0])

    async def _one(self, call: dict[str, Any]) -> dict[str, Any]:
        """One push, with its own result whatever became of the others."""
        payload = call.pop("payload")
        try:
            return answer_of(await self._gateway.app.push(payload, **call))
        except (ConfigError, PayloadError) as exc:
            return {"success": False, "error_code": "BAD_REQUEST", "message": str(exc)}
        except StoreError as exc:
            return {"success": False, "error_code": "UNAVAILABLE", "message": str(exc)}

    def _refused(self, request: Request) -> JSONResponse | None:
        """Without a token only loopback is served (the configuration sees to that), and no web page of elsewhere."""
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._gateway.config.origins:
            return _forbidden(f"origin: {origin!r} is not one of the gateway's origins")
        if not self._token:
            host = request.url.hostname or ""
            return None if is_address(host) else _forbidden(f"host: {host!r} is no name of this machine")
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode()):
            return None
        return JSONResponse(
            {"error": "unauthorized", "message": "send Authorization: Bearer <the gateway's http_token>"},
            status_code=401,
            headers={"www-authenticate": "Bearer"},
        )


def read_push(row: Any, where: str = "") -> dict[str, Any]:
    """A UnicastPushRequest as arguments of `app.push`. Raises BadPush that names the field."""
    if not isinstance(row, Mapping):
        raise BadPush(f"{where or 'body'}: expected an object, got {type(row).__name__}")
    for name in row:
        if name not in FIELDS:
            raise BadPush(str(ConfigError(f"{where}field", name, f"one of {', '.join(sorted(FIELDS))}", known=FIELDS)))
    kind = row.get("target_type")
    if kind not in TARGETS:
        raise BadPush(str(ConfigError(f"{where}target_type", kind, f"one of {', '.join(TARGETS)}", known=TARGETS)))
    call: dict[str, Any] = {"payload": _data(row, where)}
    target = row.get("target_id")
    if kind == "everyone":
        call["everyone"] = True
    elif not isinstance(target, str) or not target:
        raise BadPush(f"{where}target_id: got {target!r}, expected the {kind}'s id as a text")
    else:
        call["user" if kind == "openid" else kind] = target
    for name, key in (("msg_type", "type"), ("title", "title"), ("content", "content"), ("dedupe_key", "dedupe_key")):
        if (value := row.get(name)) is not None:
            call[key] = _typed(where, name, value, str, "a text")
    if (metadata := row.get("metadata")) is not None:
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise BadPush(f"{where}metadata: got {metadata!r}, expected an object of texts")
        call["metadata"] = metadata
    for name in ("ttl", "wait"):
        if (value := row.get(name)) is not None:
            call[name] = _typed(where, name, value, (int, float), "a number of seconds")
    _read_binding(row, where, kind, call)
    return call


def _read_binding(row: Mapping[str, Any], where: str, kind: str, call: dict[str, Any]) -> None:
    given = row.get("sync_hint", 0)
    hint = HINTS.get(given) if isinstance(given, str) else given
    if isinstance(hint, bool) or hint not in (0, 1, 2):
        raise BadPush(f"{where}sync_hint: got {given!r}, expected 0, 1, 2 or one of {', '.join(HINTS)}")
    rid = row.get("bind_client_seq_id")
    if hint and kind != "session":
        raise BadPush(f"{where}sync_hint: got {given!r}, expected 0 for target_type {kind}: a request has one session")
    if hint and (not isinstance(rid, int) or isinstance(rid, bool) or rid < 1):
        raise BadPush(f"{where}bind_client_seq_id: got {rid!r}, expected the request's number, needed by sync_hint")
    if hint:
        call["sync_hint"] = SyncHint(hint)
        call["bind"] = rid
        for name in ("late", "on_fail"):
            if (value := row.get(name)) is not None:
                call[name] = _typed(where, name, value, str, "a text")


def _data(row: Mapping[str, Any], where: str) -> Any:
    """`data` is any JSON value; bytes come as base64 in `data64`."""
    if row.get("data64") is None:
        return row.get("data")
    try:
        return base64.b64decode(row["data64"], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise BadPush(f"{where}data64: expected bytes as base64") from None


def _typed(where: str, name: str, value: Any, kind: Any, expected: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadPush(f"{where}{name}: got {value!r}, expected {expected}")
    return value


def answer_of(result: PushResult | list[PushResult] | Spread) -> dict[str, Any]:
    """What became of a push: of one session, of all sessions of a user, or of many, counted."""
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


async def _json(request: Request) -> Any:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise BadPush(f"body: more than {MAX_BODY:,} bytes")
    found = bytes(data)
    if too_deep(found):
        raise BadPush(f"body: nested more than {MAX_DEPTH} deep")
    try:
        return json.loads(found)
    except (ValueError, RecursionError) as exc:
        raise BadPush(f"body: not JSON: {exc}") from None


def _bad(message: str) -> JSONResponse:
    return JSONResponse({"error": "bad_request", "message": message}, status_code=400)


def _forbidden(message: str) -> JSONResponse:
    return JSONResponse({"error": "forbidden", "message": message}, status_code=403)


def _health(problems: list[str]) -> JSONResponse:
    return JSONResponse({"ok": not problems, "problems": problems}, status_code=503 if problems else 200)


def _bind(place: Endpoint) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio would leave Nagle on
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(tuple(place))
    except OSError as exc:
        bound.close()
        raise ConfigError("http", str(place), f"an address that is free: {exc.strerror}") from exc
    bound.setblocking(False)
    return bound
