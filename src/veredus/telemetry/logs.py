"""Log records that say which task they belong to, and which trace."""

from __future__ import annotations

import logging
import sys

from veredus.worker.context import current


class TaskFields(logging.Filter):
    """Adds `task_id`, `task_type`, `queue` and `attempt` to what a handler logs, and `trace_id` and `span_id` while a
    trace is recorded; a filter for a log handler, so that it sees the records of every library."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            context = current()
        except LookupError:
            pass
        else:
            record.task_id, record.task_type = context.id, context.type
            record.queue, record.attempt = context.queue, context.attempt
        trace = sys.modules.get("opentelemetry.trace")
        if trace is not None:
            span = trace.get_current_span().get_span_context()
            if span.is_valid:
                record.trace_id, record.span_id = f"{span.trace_id:032x}", f"{span.span_id:016x}"
        return True
