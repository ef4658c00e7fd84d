"""Log output of the commands: text or JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from veredus.app import App

LEVELS = ("debug", "info", "warning", "error")


class JsonFormatter(logging.Formatter):
    """One JSON object per line, including `extra` fields."""

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
        elif record.exc_text:  # already formatted in a handler's process
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


def show_server(app: App, log_format: str = "text") -> None:
    """Say first of all which server is used: on stderr, or as a log entry where these are JSON."""
    if log_format == "json":
        logging.getLogger("veredus").info("server: %s", app.server.describe())
    else:
        click.echo(f"server: {app.server.describe()}", err=True)
