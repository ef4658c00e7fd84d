"""Makes the calls of a golden file again, through Veredus's public API, and takes the dump at the same point."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

from tests.interop.go_peer import GoPeer
from tests.interop.golden import OURS, Dump, Run, Sent, golden_dump, instant, seconds, take
from tests.support.golden import load
from tests.support.waiting import until
from veredus import App, ConfigError, RevokeTask, SkipRetry, TaskIdConflict

SENT_ONLY = [
    "pending",
    "pending-variants",
    "scheduled",
    "deadline-timeout",
    "headers",
    "task-id",
    "batch",
    "unique",
    "unique-scheduled",
    "unique-id-conflict",
    "paused",
    "group-aggregating",
    "group-scheduled-before",
]
WORKED = [
    "retry",
    "retry-not-failure",
    "archived",
    "archived-skip-retry",
    "completed",
    "revoked",
    "cancelled",
    "timeout-exceeded",
    "shutdown-requeue",
    "stats",
    "unique-completed",
    "server-idle",
    "server-idle-after-shutdown",
]

REFUSED = {
    "task already exists": "not created",
    "task ID conflicts with another task": "TaskIdConflict",
    "Unique TTL cannot be less than 1s": "ConfigError",
}
"""What Veredus says where Asynq returns an error."""


def golden_app(url: str) -> App:
    """The handlers of the golden runs."""
    app = App(url)

    @app.task(name="sleep", payload="raw")
    async def sleep(payload: bytes) -> None:
        await asyncio.sleep(int(payload) / 1000)

    @app.task(name="fail", payload="raw")
    async def fail(payload: bytes) -> None:
        raise RuntimeError("intentional failure")

    @app.task(name="skip", payload="raw")
    async def skip(payload: bytes) -> None:
        raise RuntimeError("no use: skip retry for the task") from SkipRetry()

    @app.task(name="revoke", payload="raw")
    async def revoke(payload: bytes) -> None:
        raise RuntimeError("no use: revoke task") from RevokeTask()

    @app.task(name="echo", payload="raw")
    async def echo(payload: bytes) -> bytes:
        return payload

    @app.task(name="noop", payload="raw")
    async def noop(payload: bytes) -> None:
        return None

    return app


def worker_settings(config: dict[str, Any]) -> dict[str, Any]:
    """A golden server's config in Veredus's words."""
    settings: dict[str, Any] = {
        "queues": {name: int(weight) for name, weight in (item.split("=") for item in config["queues"].split(","))},
        "concurrency": config["concurrency"],
    }
    for theirs, ours in (
        ("shutdown_timeout", "shutdown_timeout"),
        ("retry_delay", "retry_delay"),
        ("delayed_check_interval", "forward_interval"),
    ):
        if theirs in config:
            settings[ours] = seconds(config[theirs])
    if config.get("strict"):
        settings["strict"] = True
    if config.get("not_failure"):
        settings["is_failure"] = lambda error: False
    return settings


def options_of(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a golden call in Veredus's words."""
    options: dict[str, Any] = {}
    for theirs, ours in (("process_in", "delay"), ("retention", "retention"), ("unique", "unique_for")):
        if theirs in given:
            options[ours] = seconds(given[theirs])
    for theirs, ours in (("process_at", "at"), ("deadline", "deadline")):
        if theirs in given:
            options[ours] = instant(given[theirs])
    for name in ("queue", "task_id", "group"):
        if name in given:
            options[name] = given[name]
    if "max_retry" in given:
        options["max_retry"] = max(0, given["max_retry"])  # row refused-arguments: a negative number is refused
    if seconds(given.get("timeout", "")):  # row timeout-zero: 0 is refused, to be left out instead
        options["timeout"] = seconds(given["timeout"])
    headers = [*given.get("task_header", []), *given.get("header", [])]
    if headers:
        options["headers"] = dict(text.split("=", 1) for text in headers)
    return options


def payload_of(given: dict[str, Any]) -> bytes | None:
    if given.get("nil_payload"):
        return None
    return base64.b64decode(given["payload_b64"]) if "payload_b64" in given else given["payload"].encode()


class Replay:
    """One golden file, made again on an empty server."""

    def __init__(self, name: str, url: str, client: Any) -> None:
        self.name, self.client = name, client
        self.golden = load(name)
        self.app = golden_app(url)
        self.peer = GoPeer(client)
        self.run = Run(OURS, time.time())
        self.ids: dict[str, str] = {}
        """Golden id -> ours."""
        self.worker: Any = None

    async def play(self) -> Dump:
        """All calls in order; the dump after the last."""
        steps = {
            "Client.Enqueue": self.enqueue,
            "Client.BatchEnqueueContext": self._enqueue_many,
            "Server.Start": self.start,
            "Inspector cancel": self._cancel,
            "Inspector pause": self._pause,
            "Server.Stop": self._quiet,
            "worker stopped with SIGTERM": self._stop,
        }
        try:
            for call in self.golden["inputs"]:
                await steps[call["call"]](call)
            if self.worker is not None:
                await until(self.beaten, what="the worker's first beat")
            return await take(self.client)
        finally:
            await self.close()

    async def enqueue(self, call: dict[str, Any]) -> None:
        given, said, called = call["given"], "", time.time()
        options = options_of(given)
        try:
            handle = await self.app.enqueue(given["type"], payload_of(given), **options)
            said = "" if handle.created else "not created"
        except (ConfigError, TaskIdConflict) as exc:
            said = type(exc).__name__
        expected = "".join(REFUSED[text] for text in call["errors"])
        if self.name == "unique-id-conflict" and call is self.golden["inputs"][2]:
            expected = ""  # row id-conflict-leaves-no-lock: the lock is free
        assert said == expected, f"{given}: Asynq says {call['errors'] or 'nothing'}, we say {said or 'nothing'}"
        if not said:
            self._note(call, [handle], called)

    async def _enqueue_many(self, call: dict[str, Any]) -> None:
        given, called = call["given"], time.time()
        if any(text.startswith("batch enqueue does not support") for text in call["errors"]):
            return  # rows batch-unique and batch-group: we do
        declared = self.app.tasks.get(given["type"]) or self.app.task(name=given["type"], payload="raw")(_never_called)
        assert not call["errors"]
        task = declared.using(**options_of(given))
        handles = await self.app.enqueue_many(task.call(payload_of(given)) for _ in range(given["count"]))
        self._note(call, handles, called)

    def _note(self, call: dict[str, Any], handles: list[Any], called: float) -> None:
        given = call["given"]
        for info, handle in zip(call["returned"] or [None] * len(handles), handles, strict=True):
            if info is not None:
                self.ids[info["id"]] = handle.id
                assert handle.state == info["state"]
            self.run.sent.append(
                Sent(
                    handle.id,
                    called,
                    time.time(),
                    instant(given["process_at"]).timestamp() if "process_at" in given else None,
                    seconds(given["process_in"]) if "process_in" in given else None,
                    seconds(given["unique"]) if "unique" in given else None,
                    named="task_id" in given,
                )
            )

    async def play_active_first(self, goal: asyncio.Event) -> Dump:
        """A task that runs until told; the dump before the beat that would show it. The worker goes on."""

        async def until_told(payload: bytes) -> None:
            await goal.wait()

        self.app.tasks["sleep"].function = until_told
        enqueue, start = self.golden["inputs"]
        await self.start(start)
        await until(self.beaten, what="the first beat")
        await self.enqueue(enqueue)
        task_id = self.run.sent[0].id
        await until(lambda: self.in_state("critical", task_id, b"active"), what="the start of the task")
        return await take(self.client)

    async def _quiet(self, call: dict[str, Any]) -> None:
        await until(self.beaten, what="the worker's first beat")
        self.worker.quiet()

    async def close(self) -> None:
        if self.worker is not None:
            await self.worker.stop()
        await self.app.close()

    async def start(self, call: dict[str, Any]) -> None:
        settings = worker_settings(call["config"])
        if "retry_delay" in settings:
            self.run.retry_delay = (settings["retry_delay"],) * 2
        self.worker = self.app.worker(**settings)
        await self.worker.start()

    async def _cancel(self, call: dict[str, Any]) -> None:
        task_id = self.ids[call["args"]["id"]]
        await until(lambda: self.in_state("default", task_id, b"active"), what="the start of the task")
        await until(lambda: self.peer.cancel(task_id), what="somebody who listens")

    async def _pause(self, call: dict[str, Any]) -> None:
        assert await self.peer.pause(call["args"]["queue"])

    async def _stop(self, call: dict[str, Any]) -> None:
        if self.name == "shutdown-requeue":
            sleeper = self.run.sent[1].id
            await until(lambda: self.in_state("default", sleeper, b"active"), what="the start of the task")
        elif self.name != "server-idle-after-shutdown":
            await until(self._all_ended, what="the end that the golden tasks have")
        worker, self.worker = self.worker, None
        await worker.stop()

    async def _all_ended(self) -> bool:
        """Every task is in the state that its golden counterpart ended in, or gone like it."""
        rows = golden_dump(self.name).rows
        for call in self.golden["inputs"]:
            for info in (call["returned"] or []) if call["call"].startswith("Client.") else []:
                row = rows.get(f"asynq:{{{info['queue']}}}:t:{info['id']}")
                state = row.value[b"state"] if row else None
                if not await self.in_state(info["queue"], self.ids[info["id"]], state):
                    return False
        return True

    async def in_state(self, queue: str, task_id: str, state: bytes | None) -> bool:
        return bool(await self.client.hget(f"asynq:{{{queue}}}:t:{task_id}", "state") == state)

    async def beaten(self) -> bool:
        return await self.client.exists("asynq:servers") == 1 and await self.peer.listeners() == 1


async def _never_called(payload: bytes) -> None:
    raise AssertionError("no worker runs in this scenario")
