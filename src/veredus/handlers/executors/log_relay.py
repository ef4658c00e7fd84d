"""Sends the log records of a handler's process to the worker, which handles and formats them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from veredus.handlers.context import current
from veredus.handlers.executors.pipe import Head, Pipe

MAX_TEXT = 64 * 1024
"""Characters of each text of a record that are sent."""
_DROPPED = ("args", "exc_info", "message", "asctime")


def levels() -> dict[str, int]:
    """The levels of all loggers that set one. The root logger's is under ""."""
    found = {"": logging.root.level}
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level:
            found[name] = logger.level
    return found


def relay(pipe: Pipe, wanted: Mapping[str, int]) -> None:
    """Send all records to the worker from now on. Removes handlers that imported modules have set up: the worker has
    them too, and every record would be handled twice."""
    for logger in _loggers():
        logger.handlers = [handler for handler in logger.handlers if isinstance(handler, _Relay)]
        logger.propagate = True
    for name, level in wanted.items():
        logging.getLogger(name).setLevel(level)
    if not logging.root.handlers:
        logging.root.addHandler(_Relay(pipe))


def handle(fields: Mapping[str, Any]) -> None:
    """In the worker: handle a record as if it had been created here."""
    logger = logging.getLogger(fields["name"])
    if logger.isEnabledFor(fields["levelno"]):
        logger.handle(logging.makeLogRecord(fields))


def _loggers() -> Iterator[logging.Logger]:
    yield logging.root
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield logger


class _Relay(logging.Handler):
    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe
        self._direct = logging.StreamHandler()
        """For forks, which cannot send records to the worker."""
        self._direct.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not self._pipe.is_ours:
            self._direct.emit(record)
            return
        try:
            self._pipe.send({"say": "log", "task": _task_id(), "record": self._fields(record)})
        except Exception:  # logging must never raise
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
    """The value if JSON can encode it, otherwise its text, which a formatter would use anyway."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value[:MAX_TEXT]
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return str(value)[:MAX_TEXT]
    return value if len(text) <= MAX_TEXT else text[:MAX_TEXT]
