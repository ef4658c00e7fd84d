"""Worker processes from anywhere: ask one to take no more tasks, or to stop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from veredus.errors import ConfigError, ServerNotFound, WorkerSilent
from veredus.model.info import ServerInfo
from veredus.store.tasks.live_processes import LiveProcesses

NO_PROCESS, GO, EARLIER = 0, -1, -2
"""What the script `ask` returns when it asks nothing."""
LOOK = 0.1
"""Seconds between two looks at whether a worker has reacted."""
_SIGNALS = {"quiet": "SIGTSTP", "stop": "SIGTERM"}


class Workers:
    """The part of the inspector that asks worker processes for something. The request is stored beside the worker's
    record, and every heartbeat reads it: a lost reply or a pause of the server loses no request."""

    _processes: LiveProcesses

    if TYPE_CHECKING:

        async def servers(self) -> list[ServerInfo]: ...
        async def server(self, server: str) -> ServerInfo: ...

    async def quiet_worker(self, worker: str, *, wait: float = 0.0) -> ServerInfo:
        """Let a worker process take no more tasks; it keeps running. `worker` is as for `server`. Waits up to `wait`
        seconds for it to react, which takes about one heartbeat, and then raises WorkerSilent. Raises ConfigError for a
        Go server, which takes no requests from Redis."""
        return await self._ask(worker, "quiet", wait)

    async def stop_worker(self, worker: str, *, wait: float = 0.0) -> ServerInfo:
        """Let a worker process finish its running tasks and stop, as SIGTERM does. Otherwise as `quiet_worker`. The
        returned status is `closed` if it has stopped already."""
        return await self._ask(worker, "stop", wait)

    async def _ask(self, worker: str, verb: str, wait: float) -> ServerInfo:
        server = await self.server(worker)
        code = await self._processes.ask(server, verb)
        if code == NO_PROCESS:
            raise ServerNotFound(worker)
        if code in (GO, EARLIER):
            raise ConfigError("worker", worker, _only_signals(server, verb, code))
        give_up = time.monotonic() + wait
        asked = replace(server, asked=verb)
        while asked.status == "active" and time.monotonic() < give_up:
            await asyncio.sleep(LOOK)
            alive = {one.id: one for one in await self.servers()}
            asked = alive.get(server.id) or replace(asked, status="closed", active_workers=())
        if wait and asked.status == "active":
            raise WorkerSilent(worker, verb, wait)
        return asked


def _only_signals(server: ServerInfo, verb: str, code: int) -> str:
    kind = "Asynq's Go servers take no requests from Redis" if code == GO else "earlier versions take no requests"
    return f"a Veredus worker of this version: {kind}. On {server.host}, run: kill -{_SIGNALS[verb][3:]} {server.pid}"
