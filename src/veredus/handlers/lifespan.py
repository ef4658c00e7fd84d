"""Opens and closes the app's lifespan together with a worker."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veredus.app import App

logger = logging.getLogger("veredus.worker")


async def open_lifespan(app: App, stack: AsyncExitStack) -> None:
    """Set `app.state` to what the app's lifespan yields, until the stack is closed."""
    if app.lifespan is None:
        return
    before: Any = app.state
    opened: Any = None

    def restore() -> None:
        if app.state is opened:  # unless another worker in this process has opened its own
            app.state = before

    stack.callback(restore)
    opened = await stack.enter_async_context(app.lifespan(app))
    app.state = opened


async def close(stack: AsyncExitStack, what: str) -> None:
    """Close a stack. A failure is logged, so that the rest can be closed."""
    try:
        await stack.aclose()
    except Exception:  # user code may raise anything
        logger.exception("%s failed to close", what)
