"""OpenTelemetry traces from the producer through the queue and every attempt to messages for clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Span, SpanKind, TracerProvider

from veredus.app import App
from veredus.client.call import Call
from veredus.client.client import Send
from veredus.client.handle import Handle
from veredus.client.trace_metadata import STEP_SPANS, SUPPLIERS
from veredus.errors import Retry, RevokeTask, SkipRetry
from veredus.model.job import Job
from veredus.model.options import Options

SYSTEM = "veredus"


class Tracing:
    """Call `Tracing(app)` once, before workers start. Tasks carry the W3C context (`traceparent`, `tracestate`) in
    their headers, where Go services can read it, and pushed messages in their metadata. Without an SDK nothing is
    recorded or added."""

    def __init__(
        self, app: App, *, tracer_provider: TracerProvider | None = None, propagator: TextMapPropagator | None = None
    ) -> None:
        self._app = app
        self._tracer = trace.get_tracer("veredus", tracer_provider=tracer_provider)
        self._propagator = propagator or propagate.get_global_textmap()
        app.send_middlewares.insert(0, self._send)
        app.middlewares.insert(0, self._run)
        SUPPLIERS.append(self.inject)
        STEP_SPANS.append(self._step)

    def remove(self) -> None:
        """Stop recording. Workers that are already running continue to record."""
        self._app.send_middlewares.remove(self._send)
        self._app.middlewares.remove(self._run)
        SUPPLIERS.remove(self.inject)
        STEP_SPANS.remove(self._step)

    def inject(self) -> Mapping[str, str]:
        """The current context as headers."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier

    # Sending.

    async def _send(self, calls: Iterable[Call[Any]], send: Send) -> list[Handle[Any]]:
        if isinstance(calls, tuple) and len(calls) == 1:
            [call] = calls
            with self._tracer.start_as_current_span(
                f"send {call.type}",
                kind=SpanKind.PRODUCER,
                attributes=_attributes("send", call.type, call.options.queue),
            ) as span:
                [handle] = await send(tuple(self._with_context(calls, span)))
                span.set_attribute("messaging.message.id", handle.id)
                span.set_attribute("veredus.task.created", handle.created)
                return [handle]
        attributes = {"messaging.system": SYSTEM, "messaging.operation.type": "send"}
        with self._tracer.start_as_current_span("send batch", kind=SpanKind.PRODUCER, attributes=attributes) as span:
            # A list stays a list, because it is checked as a whole before anything is sent.
            traced = self._with_context(calls, span)
            handles = await send(list(traced) if isinstance(calls, list | tuple) else traced)
            span.set_attribute("messaging.batch.message_count", len(handles))
            return handles

    def _with_context(self, calls: Iterable[Call[Any]], span: Span) -> Iterator[Call[Any]]:
        """Calls with the context in their headers. Calls that share options still share them, which is faster."""
        context = self.inject() if span.get_span_context().is_valid else {}
        merged: dict[int, tuple[Options, Options]] = {}
        for call in calls:
            if not context or "traceparent" in (call.options.headers or ()):
                yield call
                continue
            known = merged.get(id(call.options))
            if known is None:
                headers = {**context, **(call.options.headers or {})}
                known = merged[id(call.options)] = (call.options, replace(call.options, headers=headers))
            yield replace(call, options=known[1])

    # Running.

    async def _run(self, job: Job, call_next: Callable[[Job], Awaitable[Any]]) -> Any:
        parent = self._propagator.extract(dict(job.headers))
        attributes = _attributes("process", job.type, job.queue)
        attributes |= {
            "messaging.message.id": job.id,
            "messaging.message.body.size": len(job.payload),
            "veredus.task.attempt": job.retried + 1,
            "veredus.task.max_retry": job.max_retry,
        }
        with self._tracer.start_as_current_span(
            f"process {job.type}", context=parent, kind=SpanKind.CONSUMER, attributes=attributes, links=_links(parent)
        ) as span:
            try:
                return await call_next(job)
            except (SkipRetry, RevokeTask):
                span.set_attribute("veredus.task.retries", False)
                raise
            except Retry as exc:
                if exc.counts:
                    raise
                span.set_attribute("veredus.task.deferred", True)
                deferred = exc  # raised below, because an exception that leaves the span marks it as failed
        raise deferred

    def _step(self, name: str, job: Job) -> AbstractContextManager[Span]:
        """A step that runs; one whose result is kept already has no span."""
        attributes = {"messaging.message.id": job.id, "veredus.task.type": job.type, "veredus.step": name}
        return self._tracer.start_as_current_span(f"step {name}", attributes=attributes)


def _attributes(operation: str, task_type: str, queue: str) -> dict[str, Any]:
    """Attributes of the semantic conventions for messaging."""
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
        "veredus.task.type": task_type,
    }


def _links(parent: Any) -> list[Link]:
    """The conventions require a link to the producer's span in addition to the parent."""
    context = trace.get_current_span(parent).get_span_context()
    return [Link(context)] if context.is_valid else []
