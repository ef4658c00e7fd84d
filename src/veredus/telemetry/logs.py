"""Adds task and trace ids to log records."""

from __future__ import annotations

import logging
import sys

from veredus.handlers.context import current


class TaskFields(logging.Filter):
    """Adds `task_id`, `task_type`, `queue` and `attempt` to records from handlers, and `trace_id` and `span_id` within
    a trace. Add it to a log handler, not to a logger, so that it sees the records of every library."""

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
