"""Sentry with its real SDK and a transport that keeps what would be sent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk import integrations
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from veredus import App, RevokeTask, SkipRetry
from veredus.client.client import Client
from veredus.handlers.mux import Mux
from veredus.telemetry.sentry import VeredusIntegration

HAS_DATA_COLLECTION = "data_collection" in sentry_sdk.consts.DEFAULT_OPTIONS
MAY_SHOW: dict[str, Any] = {"data_collection": {"queues": True}} if HAS_DATA_COLLECTION else {"send_default_pii": True}


class Kept(Transport):
    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [(item.headers["type"], item.payload.json) for item in envelope.items]

    def of(self, kind: str) -> list[Any]:
        return [payload for found, payload in self.items if found == kind]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    monkeypatch.setattr(Mux, "__init__", Mux.__init__)  # what the integration patches is put back
    monkeypatch.setattr(Client, "__init__", Client.__init__)
    for known in (integrations._processed_integrations, integrations._installed_integrations):
        known.discard("veredus")  # patched anew by each test's `init`, which the SDK does once per process
    yield Kept()
    sentry_sdk.init()


def start(kept: Kept, integration: VeredusIntegration, **settings: Any) -> None:
    sentry_sdk.init(
        dsn="http://key@localhost/1",
        transport=kept,
        traces_sample_rate=1.0,
        default_integrations=False,
        integrations=[integration],
        **settings,
    )


@pytest.fixture
def app() -> App:
    app = App()

    @app.task(name="fail", max_retry=1)
    async def fail(secret: str) -> None:
        raise ValueError("broken")

    @app.task(name="stop")
    async def stop(kind: str) -> None:
        raise (SkipRetry if kind == "skip" else RevokeTask)("enough")

    @app.task(name="fine")
    def fine() -> None: ...

    return app


async def test_errors_and_transactions(kept: Kept, app: App) -> None:
    start(kept, VeredusIntegration())
    async with app.test() as q:
        with sentry_sdk.start_transaction(name="request"):
            handle = await app.tasks["fail"].enqueue("hunter2")
            await app.tasks["fine"].enqueue()
        await q.run_all()
        assert {"sentry-trace", "baggage"} <= set(q.sent[0].options.headers or {})
    events = kept.of("event")
    assert [event["exception"]["values"][-1]["value"] for event in events] == ["broken", "broken"]
    assert events[0]["transaction"] == "fail"
    assert events[0]["tags"] == {"veredus_task_id": handle.id, "veredus_queue": "default", "veredus_task_retry": False}
    assert events[0]["exception"]["values"][-1]["mechanism"] == {"type": "veredus", "handled": False}
    assert events[1]["extra"]["veredus-task"]["attempt"] == 2
    assert "hunter2" not in str(events[0]["extra"])
    transactions = {one["transaction"]: one for one in kept.of("transaction")}
    assert set(transactions) == {"request", "fail", "fine"}
    traces = {one["contexts"]["trace"]["trace_id"] for one in transactions.values()}
    assert len(traces) == 1, "one trace"
    assert transactions["fail"]["contexts"]["trace"]["op"] == "queue.process"
    assert transactions["fail"]["contexts"]["trace"]["status"] == "internal_error"
    assert [span["op"] for span in transactions["request"]["spans"]] == ["queue.publish", "queue.publish"]


async def test_only_the_last_attempt_if_wanted(kept: Kept, app: App) -> None:
    start(kept, VeredusIntegration(report_after_retries=True), **MAY_SHOW)
    async with app.test() as q:
        await app.tasks["fail"].enqueue("shown")
        await app.tasks["stop"].enqueue("skip")
        await app.tasks["stop"].enqueue("revoke")
        await q.run_all()
    events = kept.of("event")
    assert [(one["transaction"], one["extra"]["veredus-task"]["attempt"]) for one in events] == [
        ("stop", 1),
        ("fail", 2),
    ]
    assert events[1]["extra"]["veredus-task"]["payload"] == '{"secret":"shown"}'


async def test_a_revoked_task_is_no_error_and_a_skipped_retry_is_one(kept: Kept, app: App) -> None:
    start(kept, VeredusIntegration())
    async with app.test() as q:
        revoked = await app.tasks["stop"].enqueue("revoke")
        skipped = await app.tasks["stop"].enqueue("skip")
        await q.run_all()
    assert [event["tags"]["veredus_task_id"] for event in kept.of("event")] == [skipped.id]
    statuses = {
        one["contexts"]["trace"]["data"]["messaging.message.id"]: one["contexts"]["trace"]["status"]
        for one in kept.of("transaction")
        if one["transaction"] == "stop"
    }
    assert statuses == {revoked.id: "aborted", skipped.id: "internal_error"}


async def test_without_a_client_everything_is_as_before(kept: Kept, app: App) -> None:
    start(kept, VeredusIntegration())
    sentry_sdk.init(default_integrations=False)
    async with app.test() as q:
        await app.tasks["fine"].enqueue()
        await q.drain(raises=True)
        assert q.sent[0].options.headers is None
    assert kept.items == []


def test_as_a_user_sets_it_up() -> None:
    program = """
import asyncio, sentry_sdk
from veredus import App
app = App()  # made before Sentry was
@app.task(max_retry=0)
async def fail(): raise ValueError("broken")
from veredus.telemetry.sentry import VeredusIntegration
seen = []
sentry_sdk.init("http://key@localhost/1", integrations=[VeredusIntegration()], before_send=lambda e, h: seen.append(e))
async def main():
    async with app.test() as q:
        await fail.enqueue()
        await q.drain()
asyncio.run(main())
print(len(seen), seen[0]["transaction"])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split()[-2:] == ["1", "main.fail"], ended.stderr
