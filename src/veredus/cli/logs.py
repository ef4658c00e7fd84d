"""Log lines of the commands: readable for people, JSON for programs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error")


class JsonFormatter(logging.Formatter):
    """One JSON object per line; what was given as `extra` is in it."""

    _known = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        fields.update({name: value for name, value in vars(record).items() if name not in self._known})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:  # of a handler's process, which has formatted it
            fields["exception"] = record.exc_text
        return json.dumps(fields, default=str)


def configure(level: str, kind: str) -> None:
    handler = logging.StreamHandler()
    if kind == "json":
        from veredus.telemetry.logs import TaskFields

        handler.addFilter(TaskFields())
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
