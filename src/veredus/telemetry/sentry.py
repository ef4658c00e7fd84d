"""Sentry: errors of handlers as events, attempts as transactions, in the style of its other integrations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import sentry_sdk
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import should_send_default_pii
from sentry_sdk.tracing import TransactionSource
from sentry_sdk.utils import event_from_exception

from veredus.client.calls import Call
from veredus.client.client import Client, Send, SendMiddleware
from veredus.client.handle import Handle
from veredus.errors import RevokeTask, SkipRetry
from veredus.model.job import Job
from veredus.worker.mux import Mux

MAX_PAYLOAD = 2_000
"""Characters of a payload that are shown, if personal data may be sent at all."""


class VeredusIntegration(Integration):
    """`sentry_sdk.init(dsn=..., integrations=[VeredusIntegration()])`: every app of this process is watched.

    Each failed attempt is an event; with `report_after_retries=True`, only that of the last one. Payloads are sent only
    if `send_default_pii`, or `data_collection` for queues, allows it.
    """

    identifier = "veredus"
    origin = "auto.queue.veredus"

    def __init__(self, *, report_after_retries: bool = False) -> None:
        self.report_after_retries = report_after_retries

    @staticmethod
    def setup_once() -> None:
        """Whatever sends or runs tasks from now on does so through us; without a client of Sentry's, as before."""
        make_mux, make_client = Mux.__init__, Client.__init__

        def init_mux(self: Mux, tasks: Any, patterns: Any, middlewares: Sequence[Any]) -> None:
            make_mux(self, tasks, patterns, (_run, *middlewares))

        def init_client(self: Client, *args: Any, middlewares: Sequence[SendMiddleware] = (), **kwargs: Any) -> None:
            make_client(self, *args, middlewares=_Watched(middlewares), **kwargs)

        Mux.__init__ = init_mux  # type: ignore[method-assign]
        Client.__init__ = init_client  # type: ignore[method-assign]


class _Watched(Sequence[SendMiddleware]):
    """Ours first, then those of the app, which may still become more."""

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
        carrying = _carrying(calls)
        handles = await send(list(carrying) if isinstance(calls, list | tuple) else carrying)
        if single is not None:
            span.set_data("messaging.message.id", handles[0].id)
            span.set_data("messaging.destination.name", single.options.queue)
        span.set_data("messaging.batch.message_count", len(handles))
        return handles


def _carrying(calls: Iterable[Call[Any]]) -> Iterator[Call[Any]]:
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
            except RevokeTask as exc:
                span.set_status("aborted")
                revoked = exc  # raised below: a transaction that an exception leaves counts as failed
            except Exception as exc:
                span.set_status("internal_error")
                if not integration.report_after_retries or _is_last(job, exc):
                    _capture(exc)
                raise
        raise revoked


def _is_last(job: Job, exc: Exception) -> bool:
    return job.retried >= job.max_retry or isinstance(exc, SkipRetry)


def _capture(exc: Exception) -> None:
    event, hint = event_from_exception(
        exc,
        client_options=sentry_sdk.get_client().options,
        mechanism={"type": VeredusIntegration.identifier, "handled": False},
    )
    sentry_sdk.capture_event(event, hint=hint)


def _may_show_payloads() -> bool:
    """Sentry's newer setting where the user gave it, else the older one."""
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
