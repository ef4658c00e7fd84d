"""Asynq's semaphore (x/rate): a limited number of tasks hold a token at once, in Go and Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from veredus.errors import ConfigError
from veredus.model.checks import whole
from veredus.model.names import is_utf8

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Protocol

    from veredus.store.connection.redis import Redis

    class Running(Protocol):
        """What a token needs from the task that takes it."""

        @property
        def id(self) -> str: ...

        @property
        def deadline(self) -> datetime: ...


class Semaphore:
    """Used inside a handler. A token that is not released becomes free when the attempt's deadline has passed."""

    def __init__(self, scope: str, most: int, redis: Callable[[], Redis], running: Callable[[], Running]) -> None:
        if not isinstance(scope, str) or not scope.strip() or not is_utf8(scope):
            raise ConfigError("scope", scope, "a text with one or more characters")
        self.scope, self.most = scope, whole("most", most, 1)
        self._redis, self._running = redis, running

    async def acquire(self) -> bool:
        """Take a token for the running task; one that has a token keeps it. Returns False if all are taken: raise an
        error then, so that the task is retried."""
        from veredus.store.tasks.limits import LimitStore

        context = self._running()
        deadline = math.ceil(context.deadline.timestamp())
        return await LimitStore(self._redis()).acquire(self.scope, self.most, context.id, deadline)

    async def release(self) -> bool:
        """Release the token. Returns False if this task had none, or no longer has it."""
        from veredus.store.tasks.limits import LimitStore

        return await LimitStore(self._redis()).give_back(self.scope, self._running().id)
