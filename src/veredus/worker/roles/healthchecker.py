"""Healthchecker: pings Redis and tells the user's function: the error, or None when all is well."""

from __future__ import annotations

from veredus.errors import StoreError
from veredus.store.store import Store
from veredus.worker.complaints import Complaints
from veredus.worker.config import HealthCheck
from veredus.worker.endings import log_hook_failure
from veredus.worker.role import Role


class Healthchecker(Role):
    name = "healthchecker"

    def __init__(self, store: Store, check: HealthCheck, interval: float, complaints: Complaints) -> None:
        super().__init__(interval, complaints)
        self._store = store
        self._check = check

    async def step(self) -> None:
        error: BaseException | None = None
        try:
            await self._store.ping()
        except StoreError as exc:
            error = exc
            self.complaints.error(self.name, "the health check failed", exc)
        try:
            told = self._check(error)
            if told is not None:
                await told
        except BaseException as exc:
            log_hook_failure("health_check", exc)
