"""The dashboard as an ASGI app: its routes, authentication, and errors as JSON."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, Router, request_response
from starlette.types import Message, Receive, Scope, Send

from veredus.clock import SYSTEM
from veredus.dashboard import change_routes, flags, job_routes, read_routes, server_views
from veredus.dashboard.answers import HEADERS, Json, described, problem
from veredus.dashboard.assets import FOREVER, Asset, assets
from veredus.dashboard.auth import BEARER, DAYS, HOOK, Authenticator, TooManyTokens, Visitor, WrongTokens
from veredus.dashboard.backend import Backend, Source
from veredus.dashboard.change_routes import Changing
from veredus.dashboard.config import Access, DashboardConfig
from veredus.dashboard.forms import body_of, pairs_of, query_of
from veredus.dashboard.jobs import TooManyJobs
from veredus.dashboard.live import Live
from veredus.dashboard.read_routes import Reading
from veredus.dashboard.task_views import ACTIONS, BULK_ACTIONS
from veredus.errors import ConfigError, VeredusError, near

logger = logging.getLogger("veredus.dashboard")

READINGS: dict[str, Reading] = {**read_routes.READINGS, **server_views.READINGS, **flags.READINGS}
CHANGES: dict[str, Changing] = {**change_routes.CHANGES, **job_routes.CHANGES}
_SAFE = ("GET", "HEAD")
_METHODS = (*_SAFE, "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

Endpoint = Callable[[Request], Awaitable[Response]]
Answer = Callable[[Request, Visitor], Awaitable[Response]]
"""An endpoint behind the authentication."""


def asgi(
    app_or_url: Source | str,
    *,
    token: str | None = None,
    viewer_token: str | None = None,
    access: Access | None = None,
    read_only: bool = False,
    refresh: float = 1.0,
    origins: Sequence[str] = (),
    hosts: Sequence[str] = (),
) -> Dashboard:
    """The dashboard as an ASGI app that can be mounted anywhere: `Mount("/veredus", veredus.dashboard.asgi(app))`.

    Without `token`, a random one is generated and logged. Users with the `viewer_token` see no payloads and change
    nothing. `access` is a function of the request, for a login of your own: "full", "view", or None, which asks for a
    token. `origins` are the addresses that browsers use if a proxy changes the Host header. `hosts` are the names that
    the Host header may have.
    """
    config = DashboardConfig.make(
        token=token,
        viewer_token=viewer_token,
        access=access,
        read_only=read_only,
        refresh=refresh,
        origins=origins,
        hosts=hosts,
    )
    if config.generated:
        logger.warning("no dashboard token was given; to log in, append #token=%s to its address", config.token)
    return Dashboard(app_or_url, config)


class Dashboard:
    """Connects at the first request. `close()` disconnects; servers that support lifespan call it on shutdown."""

    def __init__(self, app_or_url: Source | str, config: DashboardConfig) -> None:
        self.config = config
        self.backend = Backend(app_or_url, config)
        self._auth = Authenticator(config)
        self._live = Live(self.backend, READINGS)
        self._live_views = Live(self.backend, READINGS, views=True)
        self._wrong = WrongTokens()
        self._router = Router(self._routes(), redirect_slashes=False, default=request_response(_add_slash))

    async def close(self) -> None:
        await self.backend.close()

    def stop_streams(self) -> None:
        """End the live streams, so that a stopping server does not wait for open pages."""
        self.backend.stopping = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"the dashboard answers http, not {scope['type']}")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    *[(name.encode(), value.encode()) for name, value in HEADERS.items()],
                ]
            await send(message)

        with contextlib.suppress(ClientDisconnect):
            if not self.config.allows_host(Headers(scope=scope).get("host", "")):
                await _wrong_host(scope, receive, send_with_headers)
                return
            await self._router(scope, receive, send_with_headers)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _routes(self) -> list[Route]:
        reads: dict[str, Answer] = {name: functools.partial(self._read, one) for name, one in READINGS.items()}
        changes: dict[str, Answer] = {name: functools.partial(self._change, name, one) for name, one in CHANGES.items()}
        return [
            _route("/", _page),
            _route("/static/{digest}/{name:path}", _file),
            _route("/api/login", self._login, "POST"),
            _route("/api/logout", self._checked(self._logout), "POST"),
            _route("/api/me", self._checked(self._me)),
            _route("/api/live", self._checked(self._stream)),
            *[_route(f"/api/{name}", self._checked(read)) for name, read in reads.items()],
            *[_route(f"/api/{name}", self._checked(change), "POST") for name, change in changes.items()],
            _route("/api/{name:path}", self._checked(_unknown), *_METHODS),
            _route("/{path:path}", _nothing, *_METHODS),
        ]

    def _checked(self, answer: Answer) -> Endpoint:
        """Require a login, and for a write also the proof that it comes from our own page."""

        async def endpoint(request: Request) -> Response:
            visitor = await self._visitor(request)
            if not isinstance(visitor, Visitor):
                return visitor
            refused = "" if request.method in _SAFE else self._auth.refusal(visitor.holder, request.headers)
            return problem(403, "forbidden", refused) if refused else await answer(request, visitor)

        return endpoint

    async def _visitor(self, request: Request) -> Visitor | Response:
        """Who asks, or the answer for a request without a login."""
        if self.config.access is not None:
            access = self.config.access(request)
            found = await access if inspect.isawaitable(access) else access
            if found in ("full", "view"):
                return Visitor(HOOK, views=found == "view")
            if found is not None:
                raise TypeError(f'access: got {found!r}, expected "full", "view" or None')
        token = self._auth.bearer(request.headers)
        if token:
            return await self._by_token(request, token) or _login_required()
        if request.headers.get("authorization"):
            return _login_required()
        return self._auth.by_cookie(request.headers, SYSTEM.time()) or _login_required()

    async def _by_token(self, request: Request, token: str) -> Visitor | None:
        address = request.client.host if request.client is not None else ""
        if self._wrong.refuses(address):
            raise TooManyTokens("too many wrong tokens from this address; try again in a second")
        visitor = self._auth.by_token(token)
        if visitor is None:
            await self._wrong.wait(address)
        return visitor

    # The API.

    async def _read(self, one: Reading, request: Request, visitor: Visitor) -> Response:
        return Json(await one.read(self.backend.opened_for(visitor.views), query_of(_query(request), one.parameters)))

    async def _change(self, name: str, one: Changing, request: Request, visitor: Visitor) -> Response:
        if visitor.views:
            return problem(403, "viewer", f"viewers change nothing: {name} is refused")
        if one.writes and self.config.read_only:
            return problem(403, "read_only", f"this dashboard is read-only: {name} is refused")
        return Json(await one.change(self.backend.opened, await body_of(request, one.fields)))

    async def _me(self, request: Request, visitor: Visitor) -> Response:
        return Json(self._settings(visitor))

    def _settings(self, visitor: Visitor) -> dict[str, Any]:
        return {
            "csrf": "" if visitor.holder == BEARER else self._auth.csrf(visitor.holder),
            "read_only": self.config.read_only or visitor.views,
            "viewer": visitor.views,
            "refresh": self.config.refresh,
            "server": self.backend.opened.redis.address.describe(),
            "actions": ACTIONS,
            "bulk_actions": BULK_ACTIONS,
        }

    async def _login(self, request: Request) -> Response:
        """Check the origin here too, so that another site cannot log anyone in."""
        refused = self._auth.refusal(BEARER, request.headers)
        if refused:
            return problem(403, "forbidden", refused)
        form = await body_of(request, ("token",))
        visitor = await self._by_token(request, form.text("token"))
        if visitor is None:
            return problem(401, "wrong_token", "that is not the dashboard's token", field="token")
        cookie = self._auth.cookie(SYSTEM.time(), views=visitor.views)
        answer = Json(self._settings(Visitor(cookie, views=visitor.views)))
        answer.set_cookie(self._auth.cookie_name, cookie, max_age=DAYS * 86_400, **_cookie_place(request))
        return answer

    async def _logout(self, request: Request, visitor: Visitor) -> Response:
        answer = Json({"changed": True})
        answer.delete_cookie(self._auth.cookie_name, **_cookie_place(request))
        return answer

    async def _stream(self, request: Request, visitor: Visitor) -> Response:
        pairs = pairs_of(_query(request))
        for field, _ in pairs:
            if field != "of":
                raise ConfigError("field", field, "of", known=("of",))
        live = self._live_views if visitor.views else self._live
        topics = live.topics([value for _, value in pairs])
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=headers)
        return StreamingResponse(live.stream(topics), media_type="text/event-stream", headers=headers)


def _route(path: str, endpoint: Endpoint, *methods: str) -> Route:
    """A route that turns every error into JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except change_routes.TaskRefused as exc:
            return Json(exc.error, _status(exc.error))
        except TooManyJobs as exc:
            return problem(429, "too_many_jobs", str(exc))
        except TooManyTokens as exc:
            return problem(429, "too_many_tokens", str(exc))
        except VeredusError as exc:
            status, error = described(exc)
            return Json(error, status)
        except Exception:  # a bug: the browser gets an error that it can show, the log gets the traceback
            logger.exception("the dashboard failed at %s", request.scope["path"])
            return problem(500, "failed", "something went wrong here; the server's log has the details")

    return Route(path, answer, methods=list(methods) or ["GET"])


def _login_required() -> Response:
    return problem(401, "login_required", "log in with the dashboard's token, or send Authorization: Bearer")


async def _wrong_host(scope: Scope, receive: Receive, send: Send) -> None:
    name = Headers(scope=scope).get("host", "")
    message = f"host: got {name!r}, expected an IP address, localhost, or a name that the dashboard was started with"
    await problem(421, "wrong_host", message)(scope, receive, send)


async def _page(request: Request) -> Response:
    return _sent(request, assets().page, "no-cache")


async def _file(request: Request) -> Response:
    known, name = assets(), request.path_params["name"]
    if name not in known.files:
        return await _nothing(request)
    return _sent(request, known.files[name], FOREVER if request.path_params["digest"] == known.digest else "no-cache")


async def _nothing(request: Request) -> Response:
    if request.method not in _SAFE:
        return problem(405, "method_not_allowed", f"{request.method} is for addresses below api/")
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return problem(404, "not_found", f"nothing is at {path!r}; the dashboard's page is at its root")


async def _add_slash(request: Request) -> Response:
    """The root without its slash, which only a mounting application can ask for."""
    return RedirectResponse(request.scope.get("root_path", "").rstrip("/").rsplit("/", 1)[-1] + "/", 307)


async def _unknown(request: Request, visitor: Visitor) -> Response:
    name, method = request.path_params["name"], request.method
    known = [*READINGS, "me", "live"] if method in _SAFE else [*CHANGES, "login", "logout"]
    others = CHANGES if method in _SAFE else READINGS
    if name in others:
        return problem(405, "method_not_allowed", f"api/{name} expects {'POST' if others is CHANGES else 'GET'}")
    return problem(404, "not_found", f"no address api/{name}{near(name, known)}")


def _query(request: Request) -> str:
    return str(request.scope.get("query_string", b"").decode("ascii", "replace"))


def _sent(request: Request, asset: Asset, caching: str) -> Response:
    headers = {"etag": asset.etag, "cache-control": caching}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.data, headers={**headers, "content-type": asset.kind})


def _cookie_place(request: Request) -> dict[str, Any]:
    return {
        "path": request.scope.get("root_path", "") or "/",
        "httponly": True,
        "samesite": "strict",
        "secure": request.url.scheme == "https",
    }


def _status(error: dict[str, Any]) -> int:
    return 404 if error["error"].endswith("not_found") else 400 if error["error"] == "bad_request" else 409
