"""Asynq's semaphore (x/rate): so many tasks at once hold a token, in Go and Python alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from veredus.errors import ConfigError
from veredus.model.names import is_utf8

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Protocol

    from veredus.store.redis import Redis

    class Running(Protocol):
        """What a token needs of the task that takes it."""

        @property
        def id(self) -> str: ...

        @property
        def deadline(self) -> datetime: ...


class Semaphore:
    """Used inside a handler. A token that is not given back is free again when the attempt's deadline has passed."""

    def __init__(self, scope: str, most: int, redis: Callable[[], Redis], running: Callable[[], Running]) -> None:
        if not isinstance(scope, str) or not scope.strip() or not is_utf8(scope):
            raise ConfigError("scope", scope, "a text with one or more characters")
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ConfigError("most", most, "a whole number of at least 1")
        self.scope, self.most = scope, most
        self._redis, self._running = redis, running

    async def acquire(self) -> bool:
        """Take a token for the running task. False if all are taken: raise an error then to be retried later."""
        from veredus.store.limits import LimitDesk

        context = self._running()
        deadline = math.ceil(context.deadline.timestamp())
        return await LimitDesk(self._redis()).acquire(self.scope, self.most, context.id, deadline)

    async def release(self) -> bool:
        """Give the token back. False if this task had none, or no longer."""
        from veredus.store.limits import LimitDesk

        return await LimitDesk(self._redis()).give_back(self.scope, self._running().id)
