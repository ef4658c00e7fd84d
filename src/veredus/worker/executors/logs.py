"""Log records of a handler's process: they go to the worker, whose handlers and formats they get."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from veredus.worker.context import current
from veredus.worker.executors.pipe import Head, Line

MAX_TEXT = 64 * 1024
"""Characters of each text of a record that travel."""
_DROPPED = ("args", "exc_info", "message", "asctime")


def levels() -> dict[str, int]:
    """What this process logs: the levels of all loggers that have one of their own; that of the root is under ""."""
    found = {"": logging.root.level}
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level:
            found[name] = logger.level
    return found


def relay(line: Line, wanted: Mapping[str, int]) -> None:
    """From now on, all records go to the worker. Handlers that modules set up while they were imported here are
    removed: the worker has them as well, and every record would come twice."""
    for logger in _loggers():
        logger.handlers = [handler for handler in logger.handlers if isinstance(handler, _Relay)]
        logger.propagate = True
    for name, level in wanted.items():
        logging.getLogger(name).setLevel(level)
    if not logging.root.handlers:
        logging.root.addHandler(_Relay(line))


def handle(fields: Mapping[str, Any]) -> None:
    """In the worker: as if the record had been made here."""
    logger = logging.getLogger(fields["name"])
    if logger.isEnabledFor(fields["levelno"]):
        logger.handle(logging.makeLogRecord(fields))


def _loggers() -> Iterator[logging.Logger]:
    yield logging.root
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield logger


class _Relay(logging.Handler):
    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line
        self._direct = logging.StreamHandler()
        """For forks, whose records the worker cannot get."""
        self._direct.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not self._line.is_ours:
            self._direct.emit(record)
            return
        try:
            self._line.send({"say": "log", "task": _task_id(), "record": self._fields(record)})
        except Exception:
            self.handleError(record)

    def _fields(self, record: logging.LogRecord) -> Head:
        fields = {name: _plain(value) for name, value in vars(record).items() if name not in _DROPPED}
        fields["msg"] = record.getMessage()[:MAX_TEXT]
        if record.exc_info and not record.exc_text:
            fields["exc_text"] = (self.formatter or logging.Formatter()).formatException(record.exc_info)[:MAX_TEXT]
        return fields


def _task_id() -> str:
    try:
        return current().id
    except LookupError:
        return ""


def _plain(value: Any) -> Any:
    """The value if it can be written as JSON, else as text: what formatters would write anyway."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value[:MAX_TEXT]
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return str(value)[:MAX_TEXT]
    return value if len(text) <= MAX_TEXT else text[:MAX_TEXT]
