"""Prometheus: what is served parses with the official parser and tells what happened."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes import running
from tests.support.servers import VALKEY_ONLY, RealServer, free_port
from tests.support.waiting import PATIENCE, forever, until, until_sync
from veredus import App, ConfigError, TaskCancelled, WorkerStopped, current
from veredus.errors import StepFailed
from veredus.events import Aggregated, Bus, Event, Forwarded, ItemDropped, LeaseWasLost, TaskOverran, TaskRecovered
from veredus.model.message import TaskMessage
from veredus.store.store import Store
from veredus.telemetry import probe_server as endpoint_module
from veredus.telemetry.gateway_metrics import read_gateway
from veredus.telemetry.metrics import WorkerMetrics, bounded
from veredus.telemetry.probe_server import ProbeServer, host_and_port
from veredus.telemetry.worker_metrics import Metrics
from veredus.worker.health import WorkerSigns, not_ready, problems

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[(name, frozenset(labels.items()))]


@contextlib.asynccontextmanager
async def scraped(app: App, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    metrics = Metrics(0)
    async with (
        app.worker(companions=[metrics], **settings),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{metrics.port}") as client,
    ):
        yield client


async def test_a_worker_tells_what_it_did(valkey_server: RealServer) -> None:
    app = App(valkey_server.url)

    @app.task(name="good", queue="one")
    async def good() -> int:
        return 1

    @app.task(name="bad", queue="two", max_retry=1, retry_delay=0.05)
    async def bad() -> None:
        raise OSError("no")

    begun = asyncio.Event()

    @app.task(name="endless", queue="three")
    async def endless() -> None:
        begun.set()
        await forever()

    async with app, scraped(app) as client:
        handles = [await good.enqueue() for _ in range(3)] + [await good.using(delay=0.1).enqueue()]
        failing = await bad.enqueue()
        for handle in handles:
            await handle.result(timeout=10)
        with pytest.raises(Exception, match="no"):
            await failing.result(timeout=10)
        cancelled = await endless.enqueue()
        await until(begun.is_set)
        await cancelled.cancel()
        with pytest.raises(TaskCancelled):
            await cancelled.result(timeout=10)
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        samples = parse(answer.text)
    assert value(samples, "veredus_task_attempts_total", queue="one", type="good", action="complete") == 4
    assert value(samples, "veredus_task_attempts_total", queue="two", type="bad", action="retry") == 1
    assert value(samples, "veredus_task_attempts_total", queue="two", type="bad", action="archive") == 1
    assert value(samples, "veredus_task_attempts_total", queue="three", type="endless", action="cancel") == 1
    as_archived = frozenset({("queue", "three"), ("type", "endless"), ("action", "archive")})
    assert ("veredus_task_attempts_total", as_archived) not in samples
    assert value(samples, "asynq_tasks_failed_total", queue="three") == 0
    assert value(samples, "veredus_task_duration_seconds_count", queue="one", type="good") == 4
    assert value(samples, "veredus_tasks_forwarded_total", queue="one") == 1
    assert value(samples, "veredus_forward_lateness_seconds_count", queue="two") == 1
    assert value(samples, "veredus_tasks_running", queue="one") == 0
    assert value(samples, "veredus_worker_slots") == 100
    assert samples[("process_resident_memory_bytes", frozenset())] > 1e6
    # Asynq's own names
    assert value(samples, "asynq_tasks_enqueued_total", queue="two", state="archived") == 1
    assert value(samples, "asynq_tasks_processed_total", queue="one") == 4
    assert value(samples, "asynq_tasks_failed_total", queue="two") == 2
    for name in ("asynq_queue_size", "asynq_queue_latency_seconds", "asynq_queue_paused_total"):
        assert (name, frozenset({("queue", "one")})) in samples


async def test_health_says_why(valkey_server: RealServer) -> None:
    app = App(valkey_server.url)

    @app.task
    async def work() -> None: ...

    metrics = Metrics(0)
    worker = app.worker(companions=[metrics])
    async with worker, httpx.AsyncClient(base_url=f"http://127.0.0.1:{metrics.port}") as client:
        for path in ("/healthz", "/readyz"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["status"]) == (200, "ok")
        worker.quiet()
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["problems"]) == (503, ["stopping: it takes no new tasks"])
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/other")).status_code == 404
        assert (await client.post("/metrics")).status_code == 405
        head = await client.head("/healthz")
        assert (head.status_code, head.content) == (200, b"")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{metrics.port}/healthz")


def test_what_health_is_judged_by() -> None:
    well = WorkerSigns(status="active", beat_age=1.0, lease=12.0, restarting=(), busy=0)
    assert problems(well) == not_ready(well) == []
    away = well._replace(beat_age=13.0)
    assert problems(away) == []
    assert not_ready(away) == ["no heartbeat reached Redis for 13 s"]
    assert problems(well._replace(restarting=("processor has ended",))) == ["processor has ended"]
    assert problems(well._replace(status="closed")) == ["it has stopped"]
    assert not_ready(well._replace(status="new")) == ["not started yet"]


async def test_without_redis_what_was_counted_is_still_told(new_server) -> None:  # type: ignore[no-untyped-def]
    server = new_server()
    app = App(server.url)

    @app.task(name="good")
    async def good() -> int:
        return 1

    async with scraped(app, shutdown_timeout=0.1) as client:
        assert await (await good.enqueue()).result(timeout=10) == 1
        server.kill()
        samples = parse((await client.get("/metrics")).text)
        await app.close()
    assert value(samples, "veredus_task_attempts_total", queue="default", type="good", action="complete") == 1
    assert not [name for name, _ in samples if name.startswith("asynq")]


def test_a_listener_that_fails_is_logged_and_the_others_hear_all(caplog: pytest.LogCaptureFixture) -> None:
    bus, heard = Bus(), list[Event]()

    def fails(event: Event) -> None:
        raise RuntimeError("a broken listener")

    bus.subscribe(fails)
    bus.subscribe(heard.append)
    bus.emit(LeaseWasLost("q", "1"))
    assert heard == [LeaseWasLost("q", "1")]
    assert "a broken listener" in caplog.text


def test_events_that_are_rare() -> None:
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    message = TaskMessage(type="t", id="1", queue="q")
    metrics(LeaseWasLost("q", "1"))
    metrics(TaskRecovered(message, 1, "retry"))
    metrics(TaskOverran(message, "thread"))
    metrics(ItemDropped("q", "1", "dangling"))
    metrics(Aggregated("q", "g", 7, ("2",)))
    get = registry.get_sample_value
    assert get("veredus_leases_lost_total", {"queue": "q"}) == 1
    assert get("veredus_tasks_recovered_total", {"queue": "q", "type": "t", "action": "retry"}) == 1
    assert get("veredus_tasks_overran_total", {"queue": "q", "type": "t", "where": "thread"}) == 1
    assert get("veredus_items_dropped_total", {"queue": "q", "reason": "dangling"}) == 1
    assert get("veredus_group_members_aggregated_total", {"queue": "q"}) == 7


async def test_durable_tasks_tell_of_steps_and_waits() -> None:
    app, registry = App(), CollectorRegistry()

    async def charge() -> None:
        pass

    async def broken() -> None:
        raise ValueError("no")

    @app.task(name="order")
    async def order() -> None:
        await current().step(charge)
        try:
            await current().step(broken)
        except StepFailed:
            await current().sleep("nap", 10)

    async with app.test() as q:
        q._work().bus.subscribe(WorkerMetrics(registry))
        await order.enqueue()
        await q.run_all()
    what = {"queue": "default", "type": "order"}
    assert registry.get_sample_value("veredus_steps_total", what | {"outcome": "done"}) == 1
    assert registry.get_sample_value("veredus_steps_total", what | {"outcome": "failed"}) == 1
    assert registry.get_sample_value("veredus_tasks_parked_total", what | {"kind": "sleep"}) == 1
    woken = {"queue": "default", "kind": "sleep"}
    assert registry.get_sample_value("veredus_wake_lateness_seconds_count", woken) == 1
    assert registry.get_sample_value("veredus_wake_lateness_seconds_sum", woken) == 0


def test_a_task_that_was_on_time_to_the_millisecond_counts_for_lateness_and_one_nobody_knew_of_does_not() -> None:
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    metrics(Forwarded("q", 1, late=0.0))
    metrics(Forwarded("q", 3, late=None))
    assert registry.get_sample_value("veredus_tasks_forwarded_total", {"queue": "q"}) == 4
    assert registry.get_sample_value("veredus_forward_lateness_seconds_count", {"queue": "q"}) == 1


async def test_a_worker_tells_of_its_own_queues_only(valkey_server: RealServer) -> None:
    app = App(valkey_server.url)
    for queue in ("mine", "elsewhere"):
        await app.enqueue("t", queue=queue, delay=600)
    async with app, scraped(app, queues="mine") as client:
        samples = parse((await client.get("/metrics")).text)
    told = {dict(labels)["queue"] for name, labels in samples if name == "asynq_queue_size"}
    assert told == {"mine"}


async def _page() -> tuple[int, str, bytes]:
    return 200, "text/plain", b"hello\n"


async def test_head_gets_the_headers_of_get_and_no_body() -> None:
    async def ask(method: str) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writer.write(f"{method} /page?probe=1 HTTP/1.1\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return head, body

    async with ProbeServer(0, {"/page": _page}) as endpoint:
        (head, body), (same, nothing) = await ask("GET"), await ask("HEAD")
    assert body == b"hello\n"
    assert (same, nothing) == (head, b"")
    assert b"Content-Length: 6" in head


async def test_whoever_connects_and_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "TIMEOUT", 0.1)
    async with ProbeServer(0, {"/page": _page}) as endpoint:
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9090", ("127.0.0.1", 9090)),
        ("0.0.0.0:9090", ("0.0.0.0", 9090)),
        ("[::1]:9090", ("::1", 9090)),
        ("host:0", ("host", 0)),
        ("h:65535", ("h", 65535)),
    ],
)
def test_where_to_listen(text: str, expected: tuple[str, int]) -> None:
    assert host_and_port(text) == expected


@pytest.mark.parametrize("text", ["", "host", "host:", "h:65536", "h:-1", "h:9o"])
def test_where_nobody_can_listen(text: str) -> None:
    with pytest.raises(ConfigError, match="metrics"):
        host_and_port(text)


def test_labels_are_bounded() -> None:
    known: set[str] = set()
    assert [bounded(f"t{n}", known, most=2) for n in (1, 2, 3, 1)] == ["t1", "t2", "other", "t1"]


async def test_a_port_that_is_taken(valkey_server: RealServer) -> None:
    app = App(valkey_server.url)

    async with scraped(app) as client:
        port = client.base_url.port
        worker = app.worker(companions=[Metrics(port or 0)])
        with pytest.raises(ConfigError, match="free"):
            await worker.start()
    with pytest.raises(ConfigError, match="companions"):
        app.worker(companions=["metrics"])  # type: ignore[list-item]
    with pytest.raises(WorkerStopped):
        await worker.start()


SHOP = """
from veredus import App
app = App()

@app.task(name="work")
async def work() -> None: ...

@app.task(name="fall")
async def fall() -> None:
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_several_processes_answer_as_one(valkey_server: RealServer, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    port = free_port()
    environment = {**os.environ, "VEREDUS_REDIS_URL": valkey_server.url}
    command = [sys.executable, "-m", "veredus", "worker", "shop:app", "-p", "2", "-c", "7", "--metrics", str(port)]

    def samples() -> Samples:
        with contextlib.suppress(httpx.HTTPError):
            return parse(httpx.get(f"http://127.0.0.1:{port}/metrics").text)
        return {}

    app = App(valkey_server.url)
    app.enqueue_many_sync(app.call("work") for _ in range(50))
    command += ["--log-format", "json"]
    with running(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as process:
        until_sync(lambda: samples().get(("veredus_worker_slots", frozenset())) == 14, what="both processes")
        key = ("veredus_task_attempts_total", frozenset({("queue", "default"), ("type", "work"), ("action", "done")}))
        until_sync(lambda: all(samples().get(key) == 50 for _ in range(4)), what="all attempts")
        app.enqueue_sync("fall", max_retry=0)
        labels = {("queue", "default"), ("type", "fall"), ("action", "archive")}
        fallen = ("veredus_tasks_recovered_total", frozenset(labels))
        until_sync(lambda: samples().get(fallen) == 1, what="the supervisor's recovery in the figures of the living")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    app.close_sync()
    assert process.returncode == 0
    lines = [json.loads(line) for line in errors.splitlines()]
    assert any(line["message"].startswith("serving metrics and health on") for line in lines)


def test_the_exporter(valkey_server: RealServer) -> None:
    app = App(valkey_server.url)
    app.enqueue_sync("elsewhere", queue="go")
    app.close_sync()
    port = free_port()
    command = [sys.executable, "-m", "veredus", "metrics", "--redis", valkey_server.url, "--memory"]

    def scraped() -> str:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/metrics").text
        return ""

    with running([*command, "--listen", str(port)]) as process:
        samples = parse(until_sync(scraped, what="an answer"))
        assert value(samples, "asynq_tasks_enqueued_total", queue="go", state="pending") == 1
        assert value(samples, "asynq_queue_size", queue="go") == 1
        assert value(samples, "asynq_queue_memory_usage_approx_bytes", queue="go") > 0
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@VALKEY_ONLY
async def test_gateway_nodes_are_told(store: Store) -> None:
    assert await read_gateway(store.nodes) == b""
    figures = {"connections": 3, "sessions": 2, "refused": {"busy": 4}, "delivery": {"sent": 9}, "draining": True}
    await store.nodes.beat("node-1", figures)
    samples = parse((await read_gateway(store.nodes)).decode())
    assert value(samples, "veredus_gateway_sessions", node="node-1") == 2
    assert value(samples, "veredus_gateway_draining", node="node-1") == 1
    assert value(samples, "veredus_gateway_refused_total", node="node-1", reason="busy") == 4
    assert value(samples, "veredus_gateway_delivery_total", node="node-1", event="sent") == 9


def test_nothing_is_loaded_that_is_not_used() -> None:
    heavy = ["prometheus_client", "opentelemetry", "sentry_sdk", "django", "fastapi", "starlette", "veredus.telemetry"]
    program = f"""
import asyncio, sys
from veredus import App
app = App()
@app.task
async def work(): pass
async def main():
    async with app.test() as q:
        await work.enqueue()
        await q.drain()
asyncio.run(main())
import veredus.cli.worker
print([name for name in {heavy!r} if name in sys.modules])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == "[]"


async def test_a_hung_loop_does_not_answer(valkey_server: RealServer) -> None:
    """The probe is on the loop that it is about."""
    app = App(valkey_server.url)
    async with scraped(app) as client:
        url = f"{client.base_url}/healthz"
        with pytest.raises(httpx.TimeoutException):
            httpx.get(url, timeout=0.2)  # the loop hangs in it
