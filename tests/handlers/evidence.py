"""Runs rows of the table in a real worker and writes down what there is to see when all is over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.handlers import work
from tests.handlers.table import EXECUTORS, ROWS, Cell
from tests.support.processes import end
from tests.support.servers import RealServer
from tests.support.waiting import PATIENCE, until_sync
from veredus import App
from veredus.wire import keys
from veredus.wire.messages import decode_task

ROOT = Path(__file__).parents[2]
SETTINGS = {"shutdown_timeout": 2.5, "threads": 16, "process_pool": 3}
SHORT_LEASES = {"lease": 1.5, "sweep": 0.3}
"""For handlers that end or block their worker: somebody waits for the end of its leases."""
_Lines = list[dict[str, Any]]
FINAL = (None, b"completed", b"archived")


@dataclass(frozen=True)
class Evidence:
    """What a task has left behind; the fields are those of `Expected`."""

    state: str
    retried: int
    error: str
    traceback: str
    result: str | None
    progress: tuple[float, str] | None
    follow_ups: int
    processed: int
    failed: int
    notes: list[dict[str, Any]]
    logs: list[dict[str, Any]]
    """The records with this task's id."""
    ended: str
    """How the worker ended."""
    complaints: list[str]
    """What it says that is no log record, and records of errors that no handler has logged."""
    log: str
    """The end of its log, for whoever looks at a test that failed."""


@dataclass(frozen=True)
class Found:
    """What a worker has left behind."""

    ended: str
    notes: _Lines
    records: _Lines
    log: str

    @property
    def complaints(self) -> list[str]:
        errors = [one for one in self.records if one["level"] in ("error", "critical") and one["logger"] != "shop"]
        others = [line for line in self.log.splitlines() if not line.startswith("{")]
        return [*(one["message"] for one in errors), *others]


def cells_together() -> list[Cell]:
    """The cells that can share a worker."""
    return [Cell(row, executor) for row in ROWS for executor in EXECUTORS if executor not in row.alone]


def cells_alone() -> list[Cell]:
    return [Cell(row, executor) for row in ROWS for executor in row.alone]


def gather(name: str, mode: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Everything that one set of cells leaves behind, by task id."""
    benches = [cells_together()] if name == "together" else [[cell] for cell in cells_alone()]
    with ThreadPoolExecutor(max(1, len(benches))) as pool:
        places = [folder / f"{name}-{mode}-{number}".replace(" ", "-") for number in range(len(benches))]
        found = list(pool.map(lambda bench, place: Bench(bench, mode, place).run(), benches, places))
    return {task_id: asdict(evidence) for one in found for task_id, evidence in one.items()}


class Bench:
    """One worker, with one process or under a supervisor, and the tasks of some cells."""

    def __init__(self, cells: Sequence[Cell], mode: str, folder: Path) -> None:
        self._cells = cells
        self._mode = mode
        self._folder = folder
        self._settings = {
            **SETTINGS,
            **(SHORT_LEASES if cells[0].row.alone else {}),
            "queues": [cell.queue for cell in cells],
            "processes": 2 if mode == "supervised" else 1,
            **(cells[0].row.settings if len(cells) == 1 else {}),
        }

    def run(self) -> dict[str, Evidence]:
        self._folder.mkdir()
        server = RealServer("valkey")
        try:
            with closing(server.client()) as client, _sender(server.url) as app:
                self._client, self._app = client, app
                how = self._work(server.url)
                log = (self._folder / "log").read_text(errors="replace")
                found = Found(how, _lines(self._folder / "notes"), _lines(self._folder / "log"), log)
                return {cell.task_id: self._evidence(cell, found) for cell in self._cells}
        finally:
            server.close()

    def _work(self, url: str) -> str:
        """Send, wait, stop; how the worker ended."""
        give_up = time.monotonic() + 2 * PATIENCE
        first = [cell for cell in self._cells if not cell.row.stopped]
        last = [cell for cell in self._cells if cell.row.stopped]
        self._send(first)
        process = self._start(url)
        try:
            to_cancel = [cell for cell in first if cell.row.cancel]
            while (first := self._unfinished(first)) and time.monotonic() < give_up:
                if process.poll() is not None:  # killed by its handler: started again, as a service manager would
                    process.wait()
                    process = self._start(url)
                begun = self._begun() if to_cancel else set()
                for cell in [cell for cell in to_cancel if cell.task_id in begun]:
                    self._app.handle(cell.task_id, queue=cell.queue).cancel_sync(cell.row.cancel)
                    to_cancel.remove(cell)
                time.sleep(0.04)
            self._send(last)
            until_sync(lambda: self._begun() >= {cell.task_id for cell in last}, what="the last handlers")
            process.terminate()
            (self._folder / "stopping").touch()
            try:
                return f"the worker ended with {process.wait(PATIENCE)}"
            except subprocess.TimeoutExpired:
                return "the worker did not end"
        finally:
            end(process)

    def _send(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            self._app.enqueue_sync(cell.type, queue=cell.queue, task_id=cell.task_id, **cell.row.options)

    def _start(self, url: str) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if "REDIS" not in name and "VEREDUS" not in name}
        nowhere = f"unix://{self._folder}/nothing-is-here"  # the worker has its server from `app.use`
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.handlers.worker", url, json.dumps(self._settings)],
                cwd=ROOT,
                env={**kept, "VEREDUS_REDIS_URL": nowhere, "HANDLER_NOTES": str(self._folder / "notes")},
                stderr=log,
                stdout=log,
                start_new_session=True,
            )

    # What is there to see.

    def _begun(self) -> set[str]:
        return {one["task"] for one in _lines(self._folder / "notes")}

    def _unfinished(self, cells: Sequence[Cell]) -> list[Cell]:
        pipe = self._client.pipeline(transaction=False)
        for cell in cells:
            pipe.hget(keys.task(cell.queue, cell.task_id), "state")
        return [cell for cell, state in zip(cells, pipe.execute(), strict=True) if state not in FINAL]

    def _evidence(self, cell: Cell, found: Found) -> Evidence:
        fields: Any = self._client.hgetall(keys.task(cell.queue, cell.task_id))
        message = decode_task(fields[b"msg"]) if fields else None
        progress = self._app.handle(cell.task_id, queue=cell.queue).status_sync().progress
        counters: Any = self._client.mget(keys.processed(cell.queue), keys.failed(cell.queue))
        sent: Any = self._client.keys(keys.task(work.FOLLOW_UPS, f"after-{cell.task_id}") + "*")
        return Evidence(
            state=fields[b"state"].decode() if fields else "gone",
            retried=message.retried if message else 0,
            error=message.error_msg if message else "",
            traceback=fields.get(b"traceback", b"").decode(),
            result=fields[b"result"].decode("latin-1") if b"result" in fields else None,
            progress=(progress.share, progress.note) if progress else None,
            follow_ups=len(sent),
            processed=int(counters[0] or 0),
            failed=int(counters[1] or 0),
            notes=[one for one in found.notes if one["task"] == cell.task_id],
            logs=[one for one in found.records if one.get("task_id") == cell.task_id],
            ended=found.ended,
            complaints=found.complaints,
            log=found.log[-3000:],
        )


@contextmanager
def _sender(url: str) -> Iterator[App]:
    app = App(url)
    try:
        yield app
    finally:
        app.close_sync()


def _lines(path: Path) -> _Lines:
    """The lines that are JSON, except one that is being written."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return [one for one in found if isinstance(one, dict)]
