"""The tasks that the workers serve: of every row a task on the loop, one in a thread, one in a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.handlers.table import EXECUTORS, ROWS, Cell
from tests.handlers.work import app, note
from veredus import current

RETRY_DELAY = 0.02


def _on_loop(cell: Cell) -> Callable[[], Any]:
    body = cell.row.awaits

    async def handle() -> Any:
        note("begun", attempt=current().attempt)
        result = cell.row.does() if body is None else await body()
        note("finished", attempt=current().attempt)
        return result

    return handle


def _elsewhere(cell: Cell) -> Callable[[], Any]:
    def handle() -> Any:
        note("begun", attempt=current().attempt)
        result = cell.row.does()
        note("finished", attempt=current().attempt)
        return result

    return handle


def _declare(cell: Cell) -> None:
    handle = _on_loop(cell) if cell.executor == "loop" else _elsewhere(cell)
    handle.__name__ = handle.__qualname__ = cell.type  # a child process finds it under this name
    options = {"queue": cell.queue, **cell.row.options}
    options.pop("headers", None)
    task = app.task(name=cell.type, run_in=cell.executor, retry_delay=RETRY_DELAY, **options)
    globals()[cell.type] = task(handle)


for _row in ROWS:
    for _executor in EXECUTORS:
        _declare(Cell(_row, _executor))
