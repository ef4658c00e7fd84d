"""OpenTelemetry with the real SDK: producer, queue, handler and pushed message are one trace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.outbox.support import Log
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, SkipRetry, current
from veredus.client.trace_metadata import STEP_SPANS, SUPPLIERS
from veredus.contrib.fastapi import lifespan
from veredus.store.store import Store
from veredus.telemetry.logs import TaskFields
from veredus.telemetry.tracing import Tracing
from veredus.wire.frames import decode_stored

GO_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorder:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> ReadableSpan:
        [span] = [span for span in self.spans if span.name == name]
        return span


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def app(recorder: Recorder) -> Iterator[App]:
    app = App()
    tracing = Tracing(app, tracer_provider=recorder.provider)
    yield app
    tracing.remove()
    assert SUPPLIERS == []
    assert STEP_SPANS == []


def context(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


async def test_one_trace_from_sender_through_tasks(app: App, recorder: Recorder) -> None:
    @app.task(name="outer", queue="one")
    async def outer() -> None:
        await inner.enqueue()

    @app.task(name="inner")
    def inner() -> None:
        assert trace.get_current_span().get_span_context().is_valid, "in a thread too"

    async with app.test(queues=["one", "default"]) as q:
        with recorder.provider.get_tracer("test").start_as_current_span("request"):
            handle = await outer.enqueue()
        await q.drain(raises=True)
        sent = q.assert_enqueued(inner)
    assert [span.name for span in recorder.spans] == [
        "request",
        "send outer",
        "process outer",
        "send inner",
        "process inner",
    ]
    request, send, process, send_inner, process_inner = recorder.spans
    assert len({context(span).trace_id for span in recorder.spans}) == 1
    for child, parent in ((send, request), (process, send), (send_inner, process), (process_inner, send_inner)):
        assert child.parent is not None
        assert child.parent.span_id == context(parent).span_id
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert process.links[0].context.span_id == context(send).span_id
    assert process.attributes is not None
    expected = {
        "messaging.system": "veredus",
        "messaging.operation.type": "process",
        "messaging.destination.name": "one",
        "messaging.message.id": handle.id,
        "veredus.task.type": "outer",
        "veredus.task.attempt": 1,
    }
    assert expected.items() <= dict(process.attributes).items()
    header = (sent.options.headers or {})["traceparent"]
    assert header.startswith(f"00-{context(send_inner).trace_id:032x}-{context(send_inner).span_id:016x}-")


async def test_steps_are_spans_and_children_belong_to_their_parent(app: App, recorder: Recorder) -> None:
    def charge() -> None:
        pass

    @app.task(name="child")
    async def child() -> None:
        pass

    @app.task(name="order")
    async def order() -> None:
        await current().step(charge)
        await current().run(child.call())

    async with app.test() as q:
        await order.enqueue()
        await q.drain(raises=True)
    step, ran = recorder.named("step charge"), recorder.named("process child")
    sent = recorder.named("send order")
    first, second = [span for span in recorder.spans if span.name == "process order"]
    assert step.parent is not None
    assert ran.parent is not None
    assert step.parent.span_id == ran.parent.span_id == first.context.span_id
    assert {span.context.trace_id for span in (step, ran, second, sent)} == {first.context.trace_id}
    assert dict(step.attributes or {})["veredus.step"] == "charge"


async def test_go_services_join_in_and_attempts_are_siblings(app: App, recorder: Recorder) -> None:
    @app.task(name="work", max_retry=1)
    async def work() -> None:
        raise OSError("no luck")

    async with app.test() as q:
        await work.using(headers={"traceparent": GO_PARENT}).enqueue()
        await q.run_all()
    first, second = (span for span in recorder.spans if span.name == "process work")
    for span in (first, second):
        assert f"{context(span).trace_id:032x}" == GO_PARENT.split("-")[1]
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == GO_PARENT.split("-")[2]
        assert span.status.status_code is StatusCode.ERROR
        assert span.events[0].name == "exception"
    assert [dict(span.attributes or {})["veredus.task.attempt"] for span in (first, second)] == [1, 2]


async def test_batches_and_what_is_not_worth_a_retry(app: App, recorder: Recorder) -> None:
    @app.task(name="work")
    async def work(number: int) -> None:
        raise SkipRetry("never")

    async with app.test() as q:
        await app.enqueue_many(work.call(n) for n in range(3))
        await app.enqueue_many([work.call(3)])
        await q.drain()
        assert len({(one.options.headers or {})["traceparent"] for one in q.sent}) == 2
    batches = [span for span in recorder.spans if span.name == "send batch"]
    assert [dict(span.attributes or {})["messaging.batch.message_count"] for span in batches] == [3, 1]
    runs = [span for span in recorder.spans if span.name == "process work"]
    assert [run.parent.span_id for run in runs if run.parent] == [context(batches[0]).span_id] * 3 + [
        context(batches[1]).span_id
    ]
    assert dict(runs[0].attributes or {})["veredus.task.retries"] is False


async def test_without_an_sdk_nothing_is_added() -> None:
    app = App()
    tracing = Tracing(app)

    @app.task
    async def work() -> None: ...

    async with app.test() as q:
        await work.enqueue()
        await q.drain()
        assert q.sent[0].options.headers is None
    tracing.remove()


@VALKEY_ONLY
async def test_from_a_web_request_to_a_pushed_message(
    recorder: Recorder, url: str, store: Store, redis_client: Any
) -> None:
    log = Log(store, redis_client)
    app = App(url)
    tracing = Tracing(app, tracer_provider=recorder.provider)
    told = asyncio.Event()

    @app.task(name="tell")
    async def tell(session: str) -> None:
        await app.push({"done": True}, session=session, metadata={"mine": "too"})
        told.set()

    web = FastAPI(lifespan=lifespan(app, worker=True))
    session = (await log.create("bob")).sid

    @web.post("/")
    async def start() -> None:
        with recorder.provider.get_tracer("web").start_as_current_span("POST /"):
            await tell.enqueue(session)

    async with web.router.lifespan_context(web):
        transport = httpx.ASGITransport(web)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.post("/")).status_code == 200
        await until(told.is_set)
    tracing.remove()
    [entry] = await log.entries(session)
    metadata = decode_stored(entry.tail).metadata
    process = recorder.named("process tell")
    assert metadata["traceparent"].startswith(f"00-{context(process).trace_id:032x}-{context(process).span_id:016x}-")
    assert metadata["mine"] == "too"
    assert context(process).trace_id == context(recorder.named("POST /")).trace_id


async def test_logs_say_which_task_and_which_trace(app: App, recorder: Recorder) -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger = logging.getLogger("test.of.handlers")
    keep = Keep()
    keep.addFilter(TaskFields())
    logger.addHandler(keep)

    @app.task(name="work")
    def work() -> None:
        logger.warning("inside")

    async with app.test() as q:
        handle = await work.enqueue()
        await q.drain(raises=True)
    logger.warning("outside")
    logger.removeHandler(keep)
    inside, outside = (vars(record) for record in records)
    fields = ("task_id", "task_type", "queue", "attempt")
    assert [inside[name] for name in fields] == [handle.id, "work", "default", 1]
    assert inside["trace_id"] == f"{context(recorder.named('process work')).trace_id:032x}"
    assert not {"task_id", "trace_id"} & set(outside)
