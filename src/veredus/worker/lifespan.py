"""What an app opens for its handlers, and what runs beside a worker: opened with it, closed with it."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veredus.app import App

logger = logging.getLogger("veredus.worker")


async def open_lifespan(app: App, stack: AsyncExitStack) -> None:
    """What the app's lifespan yields becomes `app.state`; once the stack is closed, the app has what it had before."""
    if app.lifespan is None:
        return
    before: Any = app.state
    opened: Any = None

    def put_back() -> None:
        if app.state is opened:  # another worker in this process may have opened its own
            app.state = before

    stack.callback(put_back)
    opened = await stack.enter_async_context(app.lifespan(app))
    app.state = opened


async def close(stack: AsyncExitStack, what: str) -> None:
    """What fails to close must not keep the rest from being closed."""
    try:
        await stack.aclose()
    except Exception:
        logger.exception("%s failed to close", what)
