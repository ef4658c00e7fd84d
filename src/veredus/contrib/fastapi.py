"""FastAPI and Starlette: a lifespan that opens and closes the app, and a dependency that returns it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from starlette.requests import HTTPConnection

from veredus.app import App
from veredus.errors import ConfigError

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(
    app: App, *, worker: bool | dict[str, Any] = False, check: bool = True, within: Lifespan | None = None
) -> Lifespan:
    """`api = FastAPI(lifespan=lifespan(app))` connects at startup and disconnects at shutdown.

    With `worker=True`, or a dict of settings for `app.worker`, a worker runs inside the web process. With `check=False`
    the web application starts even if Redis is unreachable. `within` is your own lifespan, which runs inside this one;
    the value it yields is passed on.
    """
    if not isinstance(worker, bool | dict):
        raise ConfigError("worker", worker, "True, False, or the settings of app.worker as a dict")

    @asynccontextmanager
    async def opened(web: Any) -> AsyncIterator[Any]:
        web.state.veredus = app
        async with AsyncExitStack() as stack:
            stack.push_async_callback(app.close)
            if check:
                await app.__aenter__()
            if worker is not False:
                await stack.enter_async_context(app.worker(**({} if worker is True else worker)))
            yield None if within is None else await stack.enter_async_context(within(web))

    return opened


def get_app(connection: HTTPConnection) -> App:
    """The dependency: `queue: Annotated[App, Depends(get_app)]`, in HTTP and WebSocket routes alike."""
    app = getattr(connection.app.state, "veredus", None)
    if not isinstance(app, App):
        raise ConfigError("lifespan", None, "FastAPI(lifespan=veredus.contrib.fastapi.lifespan(app))")
    return app
