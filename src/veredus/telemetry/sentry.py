"""Sentry integration: errors of handlers as events, attempts as transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import sentry_sdk
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import should_send_default_pii
from sentry_sdk.tracing import TransactionSource
from sentry_sdk.utils import event_from_exception

from veredus.client.call import Call
from veredus.client.client import Client, Send, SendMiddleware
from veredus.client.handle import Handle
from veredus.errors import Retry, RevokeTask, SkipRetry
from veredus.handlers.context import current
from veredus.handlers.mux import Mux
from veredus.model.job import Job

MAX_PAYLOAD = 2_000
"""Bytes of a payload in an event, if personal data may be sent."""


class VeredusIntegration(Integration):
    """`sentry_sdk.init(dsn=..., integrations=[VeredusIntegration()])` covers every app of this process.

    Each failed attempt is an event; with `report_after_retries=True`, only the last one. Payloads are sent only if
    `send_default_pii`, or `data_collection` for queues, allows it.
    """

    identifier = "veredus"
    origin = "auto.queue.veredus"

    def __init__(self, *, report_after_retries: bool = False) -> None:
        self.report_after_retries = report_after_retries

    @staticmethod
    def setup_once() -> None:
        """Add our middleware to every client and mux created from now on. Without a Sentry client it does nothing."""
        make_mux, make_client = Mux.__init__, Client.__init__

        def init_mux(self: Mux, tasks: Any, patterns: Any, middlewares: Sequence[Any]) -> None:
            make_mux(self, tasks, patterns, (_run, *middlewares))

        def init_client(self: Client, *args: Any, middlewares: Sequence[SendMiddleware] = (), **kwargs: Any) -> None:
            make_client(self, *args, middlewares=_Traced(middlewares), **kwargs)

        Mux.__init__ = init_mux  # type: ignore[method-assign]
        Client.__init__ = init_client  # type: ignore[method-assign]


class _Traced(Sequence[SendMiddleware]):
    """Our middleware first, then those of the app, which may still grow."""

    def __init__(self, others: Sequence[SendMiddleware]) -> None:
        self._others = others

    def __len__(self) -> int:
        return 1 + len(self._others)

    def __getitem__(self, position: Any) -> Any:
        return [_send, *self._others][position]


async def _send(calls: Iterable[Call[Any]], send: Send) -> list[Handle[Any]]:
    if sentry_sdk.get_client().get_integration(VeredusIntegration) is None:
        return await send(calls)
    single = calls[0] if isinstance(calls, tuple) and len(calls) == 1 else None
    name = "batch" if single is None else single.type
    with sentry_sdk.start_span(op="queue.publish", name=name, origin=VeredusIntegration.origin) as span:
        traced = _with_trace(calls)
        handles = await send(list(traced) if isinstance(calls, list | tuple) else traced)
        if single is not None:
            span.set_data("messaging.message.id", handles[0].id)
            span.set_data("messaging.destination.name", single.options.queue)
        span.set_data("messaging.batch.message_count", len(handles))
        return handles


def _with_trace(calls: Iterable[Call[Any]]) -> Iterator[Call[Any]]:
    pairs = (("sentry-trace", sentry_sdk.get_traceparent()), ("baggage", sentry_sdk.get_baggage()))
    context = {name: value for name, value in pairs if value}
    for call in calls:
        headers = {**context, **(call.options.headers or {})}
        yield replace(call, options=replace(call.options, headers=headers))


async def _run(job: Job, call_next: Callable[[Job], Awaitable[Any]]) -> Any:
    integration = sentry_sdk.get_client().get_integration(VeredusIntegration)
    if integration is None:
        return await call_next(job)
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        scope.add_event_processor(_describing(job))
        transaction = sentry_sdk.continue_trace(
            dict(job.headers), op="queue.process", name=job.type, source=TransactionSource.TASK,
            origin=VeredusIntegration.origin,
        )  # fmt: skip
        with sentry_sdk.start_transaction(transaction) as span:
            span.set_data("messaging.message.id", job.id)
            span.set_data("messaging.destination.name", job.queue)
            span.set_data("messaging.message.retry.count", job.retried)
            try:
                return await call_next(job)
            except (RevokeTask, Retry) as exc:
                span.set_status("aborted")
                if isinstance(exc, Retry) and _is_last(job, exc):
                    _capture(exc)
                asked = exc  # raised below, because an exception that leaves the transaction marks it as failed
            except Exception as exc:
                span.set_status("internal_error")
                if not integration.report_after_retries or _is_last(job, exc):
                    _capture(exc)
                raise
        raise asked


def _is_last(job: Job, exc: Exception) -> bool:
    if isinstance(exc, Retry) and not exc.counts:
        return False
    rule = current().retry_rule
    is_final = rule is not None and not isinstance(exc, Retry) and rule.is_final(exc, raised=True)
    return job.retried >= job.max_retry or isinstance(exc, SkipRetry) or is_final


def _capture(exc: Exception) -> None:
    event, hint = event_from_exception(
        exc,
        client_options=sentry_sdk.get_client().options,
        mechanism={"type": VeredusIntegration.identifier, "handled": False},
    )
    sentry_sdk.capture_event(event, hint=hint)


def _may_show_payloads() -> bool:
    """Sentry's newer setting if the user gave it, else the older one."""
    given = sentry_sdk.get_client().options.get("data_collection") or {}
    return bool(given.get("queues")) if given.get("provided_by_user") else should_send_default_pii()


def _describing(job: Job) -> Callable[[Any, Any], Any]:
    def describe(event: Any, hint: Any) -> Any:
        event["transaction"] = job.type
        event.setdefault("tags", {}).update(
            veredus_task_id=job.id, veredus_queue=job.queue, veredus_task_retry=job.retried > 0
        )
        payload = job.payload[:MAX_PAYLOAD].decode(errors="replace") if _may_show_payloads() else "[Filtered]"
        event.setdefault("extra", {})["veredus-task"] = {
            "type": job.type,
            "attempt": job.retried + 1,
            "max_retry": job.max_retry,
            "payload": payload,
        }
        return event

    return describe
