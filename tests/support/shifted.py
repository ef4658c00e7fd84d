"""A server whose clock a test may set: every script of an app is told the time, as far off as the test says."""

from __future__ import annotations

import time
from collections.abc import Callable

from veredus import App
from veredus.store.connection.redis import Redis
from veredus.testing.stage import TimedRedis


class Shift:
    """By how many seconds the server's clock is wrong from now on. What expires by itself in Redis does not notice."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def now_ms(self) -> int:
        return int((time.time() + self.seconds) * 1000)

    def over(self, redis: Redis) -> Redis:
        return TimedRedis(redis, self)

    def app(self, url: str) -> App:
        """An app all of whose connections lead to that server."""
        app = App(url)
        opened: Callable[..., Redis] = app.open_redis
        app.open_redis = lambda *name: self.over(opened(*name))  # type: ignore[method-assign]
        return app
