"""Dashboard: the ASGI app. It checks who asks, finds the address, and turns what comes of it into an answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from veredus.clock import SYSTEM
from veredus.dashboard import changing, reading, starting, surroundings
from veredus.dashboard.answers import HEADERS, Json, described, problem
from veredus.dashboard.assets import FOREVER, Asset, assets
from veredus.dashboard.backend import Backend, Source
from veredus.dashboard.changing import Changing
from veredus.dashboard.config import DashboardConfig
from veredus.dashboard.entry import DAYS, Entry
from veredus.dashboard.forms import body_of, pairs_of, query_of
from veredus.dashboard.jobs import TooManyJobs
from veredus.dashboard.live import Live
from veredus.dashboard.reading import Reading
from veredus.errors import ConfigError, VeredusError, near

logger = logging.getLogger("veredus.dashboard")

READINGS: dict[str, Reading] = {**reading.READINGS, **surroundings.READINGS}
CHANGES: dict[str, Changing] = {**changing.CHANGES, **starting.CHANGES}
WRONG_TOKEN_DELAY = 0.3


def asgi(
    app_or_url: Source | str,
    *,
    token: str | None = None,
    read_only: bool = False,
    refresh: float = 1.0,
    origins: Sequence[str] = (),
) -> Dashboard:
    """The dashboard as an ASGI app, to be mounted anywhere: `Mount("/veredus", veredus.dashboard.asgi(app))`.

    Without `token` one is made up and logged. `origins` are the addresses under which browsers know it, if a proxy
    changes the Host header.
    """
    config = DashboardConfig.make(token=token, read_only=read_only, refresh=refresh, origins=origins)
    if config.generated:
        logger.warning("the dashboard has no token of its own; log in with #token=%s behind its address", config.token)
    return Dashboard(app_or_url, config)


class Dashboard:
    """Connects at the first request; `close()` lets go again, which a server with a lifespan does by itself."""

    def __init__(self, app_or_url: Source | str, config: DashboardConfig) -> None:
        self.config = config
        self.backend = Backend(app_or_url, config)
        self._entry = Entry(config)
        self._live = Live(self.backend, READINGS)

    async def close(self) -> None:
        await self.backend.close()

    def stop_streams(self) -> None:
        """Let the open pages go, so that a server that stops need not wait for them."""
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

        request = Request(scope, receive)
        answer = await self._answer(request)
        try:
            await answer(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # Finding the address.

    async def _answer(self, request: Request) -> Response:
        root = request.scope.get("root_path", "")
        path = request.scope["path"].removeprefix(root) if root else request.scope["path"]
        try:
            if path.startswith("/api/"):
                return await self._api(request, path.removeprefix("/api/"))
            if request.method not in ("GET", "HEAD"):
                return problem(405, "method_not_allowed", f"{request.method} is for addresses below api/")
            return self._file(request, path)
        except ClientDisconnect:
            return Response(status_code=499)
        except changing.TaskRefused as exc:
            return Json(exc.told, _status(exc.told))
        except TooManyJobs as exc:
            return problem(429, "too_many_jobs", str(exc))
        except VeredusError as exc:
            status, told = described(exc)
            return Json(told, status)
        except Exception:
            logger.exception("the dashboard failed at %s", path)
            return problem(500, "failed", "something went wrong here; the server's log has the details")

    def _file(self, request: Request, path: str) -> Response:
        known = assets()
        if path == "":
            return RedirectResponse(request.scope.get("root_path", "").rstrip("/").rsplit("/", 1)[-1] + "/", 307)
        if path == "/":
            return _sent(request, known.page, "no-cache")
        digest, _, name = path.removeprefix("/static/").partition("/")
        if path.startswith("/static/") and name in known.files:
            return _sent(request, known.files[name], FOREVER if digest == known.digest else "no-cache")
        return problem(404, "not_found", f"nothing is at {path!r}; the dashboard's page is at its root")

    # The API.

    async def _api(self, request: Request, name: str) -> Response:
        writing = request.method not in ("GET", "HEAD")
        if name == "login" and writing:
            return await self._login(request)
        holder = self._entry.holder(request.headers, SYSTEM.time())
        if holder is None:
            return problem(401, "login_required", "log in with the dashboard's token, or send Authorization: Bearer")
        if writing:
            return await self._write(request, name, holder)
        query = request.scope.get("query_string", b"").decode("ascii", "replace")
        if name == "me":
            return Json(self._me(holder))
        if name == "live" and request.method == "GET":
            return self._stream(query)
        if name in READINGS:
            one = READINGS[name]
            return Json(await one.read(self.backend.opened, query_of(query, one.parameters)))
        return _unknown(name, request.method)

    async def _write(self, request: Request, name: str, holder: str) -> Response:
        refused = self._entry.refusal(holder, request.headers)
        if refused:
            return problem(403, "forbidden", refused)
        if name == "logout":
            return self._logout(request)
        one = CHANGES.get(name)
        if one is None or request.method != "POST":
            return _unknown(name, request.method)
        if one.writes and self.config.read_only:
            return problem(403, "read_only", f"this dashboard is read-only: {name} is refused")
        return Json(await one.change(self.backend.opened, await body_of(request, one.fields)))

    def _me(self, holder: str) -> dict[str, Any]:
        return {
            "csrf": "" if holder == "bearer" else self._entry.csrf(holder),
            "read_only": self.config.read_only,
            "refresh": self.config.refresh,
            "server": self.backend.opened.redis.address.describe(),
        }

    async def _login(self, request: Request) -> Response:
        """The same origin is asked for here too, so that nobody is logged in by another site."""
        refused = self._entry.refusal("bearer", request.headers)
        if refused:
            return problem(403, "forbidden", refused)
        form = await body_of(request, ("token",))
        if not self._entry.is_token(form.text("token")):
            await asyncio.sleep(WRONG_TOKEN_DELAY)
            return problem(401, "wrong_token", "that is not the dashboard's token", field="token")
        cookie = self._entry.cookie(SYSTEM.time())
        answer = Json(self._me(cookie))
        answer.set_cookie(self._entry.cookie_name, cookie, max_age=DAYS * 86_400, **_cookie_place(request))
        return answer

    def _logout(self, request: Request) -> Response:
        answer = Json({"changed": True})
        answer.delete_cookie(self._entry.cookie_name, **_cookie_place(request))
        return answer

    def _stream(self, query: str) -> Response:
        pairs = pairs_of(query)
        for field, _ in pairs:
            if field != "of":
                raise ConfigError("field", field, "of", known=("of",))
        topics = self._live.topics([value for _, value in pairs])
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._live.stream(topics), media_type="text/event-stream", headers=headers)


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


def _unknown(name: str, method: str) -> Response:
    known = [*READINGS, "me", "live"] if method in ("GET", "HEAD") else [*CHANGES, "login", "logout"]
    others = CHANGES if method in ("GET", "HEAD") else READINGS
    if name in others:
        return problem(405, "method_not_allowed", f"api/{name} is asked with {'POST' if others is CHANGES else 'GET'}")
    return problem(404, "not_found", f"no address api/{name}{near(name, known)}")


def _status(told: dict[str, Any]) -> int:
    return 404 if told["error"].endswith("not_found") else 400 if told["error"] == "bad_request" else 409
