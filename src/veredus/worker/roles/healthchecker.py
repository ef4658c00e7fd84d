"""Healthchecker: pings Redis and calls the user's function with the error, or with None."""

from __future__ import annotations

from veredus.errors import StoreError
from veredus.handlers.failure_log import log_hook_failure
from veredus.process.outage_log import OutageLog
from veredus.store.store import Store
from veredus.worker.config import HealthCheck
from veredus.worker.role import Role


class Healthchecker(Role):
    name = "healthchecker"

    def __init__(self, store: Store, check: HealthCheck, interval: float, outages: OutageLog) -> None:
        super().__init__(interval, outages)
        self._store = store
        self._check = check

    async def step(self) -> None:
        error: BaseException | None = None
        try:
            await self._store.ping()
        except StoreError as exc:
            error = exc
            self.outages.error(self.name, "the health check failed", exc)
        try:
            returned = self._check(error)
            if returned is not None:
                await returned
        except BaseException as exc:  # a hook may raise anything
            log_hook_failure("health_check", exc)
