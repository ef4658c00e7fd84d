"""A gateway that reaches its server through the proxy, its clients, and whether what they were told has happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from tests.faults.gateway.client import Patient
from tests.faults.scenario import Step
from tests.faults.stage import Scene, Stage
from tests.gateway.support import gateway
from tests.support.keyspace import snapshot
from tests.support.timed import at
from tests.support.waiting import until
from veredus import App, current
from veredus.errors import StoreError
from veredus.gateway.auth import Identity
from veredus.gateway.gateway import Gateway
from veredus.store.sessions.sessions import SessionRow
from veredus.store.store import Store
from veredus.wire import keys, session_keys

NODES = {session_keys.NODES}
"""What a gateway that runs has in Redis beside its sessions."""
ANNOUNCE = ("sadd", "zadd", "pexpire")
"""Before a session joins a group."""
LATER_MS = 30 * 24 * 3600 * 1000


async def _authenticate(token: str) -> Identity:
    """`user` or `user:group`."""
    user, _, group = token.partition(":")
    return Identity(user=user, groups=(group,) if group else ())


class GatewayStage(Stage):
    gateway: Gateway

    def _make_app(self, url: str, timeout: float) -> App:
        app = super()._make_app(url, timeout)
        self.clients: dict[str, Patient] = {}
        began = self._began

        @app.action("here", where="gateway")
        async def here(name: str) -> str:
            began(name)
            return name

        @app.action("notify", where="gateway")
        async def notify(name: str) -> str:
            began(name)
            await current().client.notify("now")
            await current().client.notify("before", when="before")
            await current().client.notify("after", when="after")
            return name

        @app.action("wait_here", where="gateway")
        async def wait_here(name: str) -> str:
            began(name)
            await self.go_on.wait()
            return name

        @app.action("there")
        async def there(name: str) -> str:
            began(name)
            return name

        @app.action("there_once", unique_for=60)
        async def there_once(name: str) -> str:
            began(name)
            return name

        @app.action("wait_there")
        async def wait_there(name: str) -> str:
            began(name)
            await self.go_on.wait()
            return name

        return app

    # Who plays.

    async def open(self, *users: str, worker: App | None = None, **settings: Any) -> None:
        """A gateway, these clients of it, and perhaps a worker; what follows is what the scenario is about."""
        given = {"authenticate": _authenticate, "may_join": lambda who, group: True, **settings}
        if worker is not None:
            await self.enter(self.worker(worker))
        self.gateway = await self.enter(gateway(self.app, **given))
        for user in users:
            await self.connect(user)
        self.proxy.calls.clear()

    async def connect(self, token: str) -> Patient:
        client = Patient(lambda: self.gateway, token)
        user = token.partition(":")[0]
        self.clients[user] = client
        self.notes[user] = lambda: summaries(client)
        self._stack.push_async_callback(client.close)
        await client.start()
        return client

    @property
    def ada(self) -> Patient:
        return self.clients["ada"]

    @property
    def store(self) -> Store:
        """Not through the proxy."""
        return self.direct._client().store

    # What they do.

    async def ask(self, rid: int, action: str, name: str, **more: Any) -> None:
        """A request of ada's: rejected, it has left nothing, and is sent again with the same number."""
        await self.ada.request(rid, action, name, **more)
        if rid in self.ada.rejected:
            await self.ask_again(rid, name)

    async def ask_again(self, rid: int, name: str) -> None:
        while rid in self.ada.rejected:
            await self.left_nothing(rid, name)
            await self.ada.send_again(rid)

    async def left_nothing(self, rid: int, name: str) -> None:
        await self.proxy.all_executed()
        sid, told = self.ada.sid, "after a reject"
        await until(lambda: not self.gateway.router._background._running, what="the end of all tries")
        record: Any = await self.redis.hget(session_keys.requests(sid), str(rid))
        assert record is None or record.startswith(b"B"), f"{told}, the request is recorded as {record!r}"
        assert await self.redis.zscore(session_keys.deadlines(sid[:4]), f"{sid}.{rid}") is None, told
        assert not await self.redis.keys(keys.task("*", f"{sid}.{rid}").replace("{*}", "*")), told
        assert (sid, rid) not in self.gateway.router.open, f"{told}, its deadline will answer it"
        assert name not in self.attempts, f"{told}, it ran"

    async def sweep_until(self, condition: Callable[[], Any]) -> None:
        """As a gateway does every two seconds, whatever came of the sweep before."""
        while not self.ada.has(condition)():
            await self.gateway.maintenance._guarded("sweep", self.gateway.maintenance._sweep)
            await self.ada.wait_a_moment(condition)

    async def row(self, client: Patient | None = None) -> SessionRow | None:
        rows = await self.store.sessions.show([(client or self.ada).sid])
        return rows[0] if rows else None

    async def session_is(self, condition: Callable[[SessionRow], Any], client: Patient | None = None) -> None:
        async def look() -> bool:
            (client or self.ada).has(lambda: True)()
            row = await self.row(client)
            return row is not None and bool(condition(row))

        await until(look, what="the session's state")

    # What is left.

    async def scene(self) -> Scene:
        """Clients have what is in their logs."""
        for client in self.clients.values():
            row = await self.row(client)
            if row is not None and row.state == "attached":
                await client.has_read(row.top)
        return await super().scene()

    async def becomes(self, scene: Any, seconds: float = 10.0) -> None:
        await self.proxy.all_executed()
        await super().becomes(scene, seconds)

    async def sound(self) -> None:
        """All that was sent is acknowledged, all is answered, and when its time is over, nothing is left."""
        self.proxy.calm()
        await self.proxy.all_executed()
        for client in self.clients.values():
            if await self.row(client) is None:
                continue
            await client.acknowledge()
            await self.session_is(lambda row: not row.pending and not row.open_requests and not row.held, client)
        await self.becomes(await self.scene())
        await super().sound()
        for client in self.clients.values():
            await client.send({"t": "bye"})
            await client.close()
        await until(lambda: not self.gateway.delivery.attached, what="the end of all connections")
        for _ in range(2):
            await until(self._strays_are_released)
        await self._nothing_is_left()

    async def _strays_are_released(self) -> bool:
        """As the gateway's beat does: a call that meets the end of an outage is made again by the next one."""
        try:
            await self.gateway.maintenance._release_strays()
        except StoreError:
            return False
        return True

    async def _nothing_is_left(self) -> None:
        for n in (1, 2):  # what the first one finds out, the second one ends
            later = Store(at(self.store.redis, (await self._now_ms()) + n * LATER_MS))
            await later.sessions.sweep()
        found = {name: key for name, key in (await snapshot(self.redis)).items() if name.startswith("gw:")}
        kept = {name: key for name, key in found.items() if key.ttl == "none" and name not in NODES}
        assert not kept, f"left in Redis for ever: {kept}"

    async def _now_ms(self) -> int:
        seconds, _ = await self.redis.time()
        return int(seconds) * 1000


async def summaries(client: Patient) -> tuple[str, ...]:
    """What a client has been sent: responses with their numbers, all else by its body."""
    client.has(lambda: True)()
    return tuple(_summary(frame) for frame in client.messages)


def _summary(frame: dict[str, Any]) -> str:
    if frame.get("kind") == "response":
        return f"{frame['rid']}: {frame.get('code') or frame['body']}"
    return f"{'late ' * (frame.get('kind') == 'late')}{frame['body']}"


def on_gateway(step: Callable[[GatewayStage], Awaitable[object]]) -> Step:
    """A step of a scenario that plays on a GatewayStage."""
    return cast(Step, step)
