"""Where a scenario plays: a real server, an app that reaches it through the proxy, one that reaches it directly, and
what can be seen of the tasks at the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio

from tests.support.faults import LONG_TIMEOUT, FaultProxy, faults_before
from tests.support.keyspace import Key, check_invariant, snapshot
from tests.support.servers import RealServer, raw
from tests.support.waiting import until
from veredus import App, Call, Job, current
from veredus.wire import keys
from veredus.wire.messages import decode_task
from veredus.worker.worker import Worker

QUEUES = ("q", "r", "s")
PATIENCE = 3.0
LEASE = 1.5


@dataclass(frozen=True)
class Scene:
    """What is seen of the tasks, each by its name: the attempts that ran it, where it is if it still is, with how many
    counted attempts; and the counters of all queues."""

    attempts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    processed: int = 0
    failed: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)
    """What else this scenario looks at."""


class Stage:
    def __init__(self, server: RealServer, proxy: FaultProxy, client: redis.asyncio.Redis, timeout: float) -> None:
        self.server, self.proxy, self.redis = server, proxy, client
        self.app = self._make_app(proxy.url, timeout)
        """Through the proxy."""
        self.direct = self._make_app(server.url, LONG_TIMEOUT)
        self.attempts: dict[str, list[int]] = {}
        self.go_on = asyncio.Event()
        """Ends the handlers that wait."""
        self.losses = 0
        """How often the task that ran last was lost with its worker."""
        self.effects: list[str] = []
        """What the steps of a durable task have done."""
        self.notes: dict[str, Callable[[], Awaitable[Any]]] = {}
        """What else is looked at."""
        self._stack = AsyncExitStack()

    def _make_app(self, url: str, timeout: float) -> App:
        app = App(url, queue="q", timeout=timeout, patience=PATIENCE)
        began = self._began

        @app.task(name="plain")
        async def plain(name: str) -> None:
            began(name)

        @app.task(name="lost")
        async def lost(name: str) -> None:
            began(name)
            self.losses = int(await self.redis.hget(keys.task("q", current().id), "losses") or 0)

        @app.task(name="answer")
        async def answer(name: str) -> str:
            began(name)
            return f"answer of {name}"

        @app.task(name="fail_once", retry_delay=0.02)
        async def fail_once(name: str) -> None:
            if began(name) == 1:
                raise ValueError("the first attempt fails")

        @app.task(name="fail", max_retry=0)
        async def fail(name: str) -> None:
            began(name)
            raise ValueError("it always fails")

        @app.task(name="wait")
        async def wait(name: str) -> None:
            began(name)
            await self.go_on.wait()

        @app.task(name="report")
        async def report(name: str) -> None:
            began(name)
            await current().progress(0.5, "half")
            await self.go_on.wait()

        async def effect(name: str) -> None:
            self.effects.append(name)

        @app.task(name="durable", retry_delay=0.02)
        async def durable(name: str) -> None:
            began(name)
            await current().step(effect, "first")
            await current().wait_for("go")
            await current().sleep("nap", 0.05)
            await current().step(effect, "second", name="second")

        @app.task(name="child")
        async def child(name: str) -> str:
            self.effects.append(name)
            return name

        @app.task(name="first_fails", max_retry=0)
        async def first_fails(name: str) -> str:
            self.effects.append(name)
            if self.effects.count(name) == 1:
                raise ValueError("the first time it fails")
            return name

        @app.task(name="parent_of_failing", retry_delay=0.02)
        async def parent_of_failing(name: str) -> None:
            began(name)
            assert await current().run(first_fails.call("x")) == "x"

        @app.task(name="parent_elsewhere", retry_delay=0.02)
        async def parent_elsewhere(name: str) -> None:
            began(name)
            assert await current().run(child.using(queue="r").call("x")) == "x"

        @app.task(name="parent", retry_delay=0.02)
        async def parent(name: str) -> None:
            began(name)
            assert await current().gather("both", [child.call("x"), child.call("y")]) == ["x", "y"]

        return app

    async def count_effects(self) -> list[str]:
        return sorted(self.effects)

    async def is_waiting(self) -> bool:
        """The task `a` waits for its event."""
        found = await self.redis.hget(keys.task("q", "a"), "waiting")
        return found is not None and raw(found).startswith(b"event ")

    def aggregate(self, app: App, size: int = 1) -> None:
        """Members of groups become one task of their names."""

        @app.aggregate("*", queue="q", max_size=size)
        def together(group: str, jobs: list[Job]) -> Call[Any]:
            names = sorted(json.loads(job.payload)["name"] for job in jobs)
            return app.tasks["plain"].call(f"group {' '.join(names)}")

    def _began(self, name: str) -> int:
        self.attempts.setdefault(name, []).append(current().attempt)
        return len(self.attempts[name])

    async def count_losses(self) -> int:
        return self.losses

    def worker(self, app: App, queues: Any = "q", **settings: Any) -> Worker:
        given = {"lease": LEASE, "forward_interval": 0.2, "concurrency": 10, "shutdown_timeout": 5.0, **settings}
        return app.worker(queues, **given)

    async def enter(self, context: Any) -> Any:
        """Left when the scenario is over."""
        return await self._stack.enter_async_context(context)

    async def close(self) -> None:
        self.go_on.set()
        await self._stack.aclose()
        await asyncio.to_thread(self.app.close_sync)
        await self.app.close()
        await self.direct.close()

    # What can be seen.

    async def scene(self) -> Scene:
        space = await snapshot(self.redis)
        places: dict[str, tuple[str, int]] = {}
        for key, value in space.items():
            if key.startswith("asynq:{") and "}:t:" in key and value.type == "hash":
                message = decode_task(value.value["msg"].encode("utf-8", "surrogateescape"))
                name = json.loads(message.payload)["name"]
                name += " again" * (name in places)
                places[name] = (value.value["state"], message.retried)
        more = {name: await look() for name, look in self.notes.items()}
        processed, failed = (_count(space, counter) for counter in ("processed", "failed"))
        attempts = {name: tuple(numbers) for name, numbers in self.attempts.items()}
        return Scene(attempts, places, processed, failed, more)

    async def becomes(self, scene: Scene, seconds: float = 10.0) -> None:
        async def same() -> bool:
            return await self.scene() == scene

        try:
            await until(same, seconds=seconds)
        except AssertionError:
            assert await self.scene() == scene

    async def settled(self, seconds: float = 5.0) -> None:
        """Until all that was enqueued so far has ended."""
        with suppress(AssertionError):
            await until(self._is_settled, seconds=seconds)

    async def _is_settled(self) -> bool:
        return all(state in ("archived", "completed") for state, _ in (await self.scene()).places.values())

    async def sound(self) -> None:
        """The layout is whole and the doctor finds nothing."""
        assert await check_invariant(self.redis) == []
        findings = await self.direct.inspector().doctor.diagnose(server=False)
        assert [finding.text for finding in findings if finding.level != "ok"] == []


def _count(space: Mapping[str, Key], counter: str) -> int:
    """Of all queues; the counter of today says the same as the one of all days."""
    total = sum(int(key.value) for name, key in space.items() if name.endswith(f"}}:{counter}"))
    daily = sum(int(key.value) for name, key in space.items() if f"}}:{counter}:" in name)
    assert daily == total, f"{counter}: {daily} on all days, {total} in all"
    return total


@asynccontextmanager
async def staged(
    server: RealServer, timeout: float = LONG_TIMEOUT, kind: type[Stage] | None = None
) -> AsyncIterator[Stage]:
    client = redis.asyncio.Redis(unix_socket_path=server.socket, decode_responses=False)
    async with faults_before(server.socket) as proxy:
        stage = (kind or Stage)(server, proxy, client, timeout)
        try:
            yield stage
        finally:
            await stage.close()
            await client.aclose()
