"""The life of a handler's process: one task after the other, until the worker closes the connection or dies."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from multiprocessing import spawn
from typing import Any, NoReturn

from veredus import forks
from veredus.errors import ConfigError
from veredus.worker.executors import logs
from veredus.worker.executors.guard import guard
from veredus.worker.executors.pipe import Head, Line
from veredus.worker.executors.remote import MAIN, pack_error, rebuild


def main(parent: int, descriptor: int) -> None:
    connection = socket.socket(fileno=descriptor)
    guard(parent, connection)
    try:
        Child(Line(connection)).serve()
    except (EOFError, OSError):
        pass  # the worker is gone, or wants this process to end


class Child:
    """Serves the worker at the other end of a line."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._tasks: dict[str, Any] = {}
        self._pid = os.getpid()
        self._levels: dict[str, int] = {}

    def serve(self) -> None:
        setting, _ = self._line.receive()
        self._levels = setting["levels"]
        logs.relay(self._line, self._levels)
        while True:
            head, body = self._line.receive()
            answer, result = self._prepare(head) if head["do"] == "prepare" else self._run(head, body)
            self._line.send(answer, result)

    def _prepare(self, head: Head) -> tuple[Head, bytes]:
        """Load what is needed to run a task. That is no part of its time."""
        if head["name"] in self._tasks:
            return {"say": "ready"}, b""
        try:
            if "main" in head:
                spawn.prepare(head["main"])
            self._tasks[head["name"]] = _find_task(head["module"], head["name"])
            import veredus.wire.messages  # noqa: F401 - the rest of what the first task would load
        except BaseException as exc:
            return {"say": "end", "error": pack_error(exc)}, b""
        finally:
            logs.relay(self._line, self._levels)
        return {"say": "ready"}, b""

    def _run(self, head: Head, message: bytes) -> tuple[Head, bytes]:
        from veredus.model.job import Job
        from veredus.wire.messages import decode_task
        from veredus.wire.results import encode_result
        from veredus.worker.context import Context, enter

        stage = "payload"
        try:
            task = self._tasks[head["name"]]
            task.app.move_to(head["app"], self._tell_app)
            decoded = decode_task(message)
            decoded.id, decoded.queue = head["id"], head["queue"]
            job = Job(decoded)
            enter(Context(job, head["deadline"], reports=PipeReports(self._line)))
            args, kwargs = task.codec.decode(job)
            stage = "handler"
            result = _call(task.function, args, kwargs)
            if not self._line.is_ours:
                forks.end(None)
            stage = "result"
            if result is None:
                return {"say": "end"}, b""
            if isinstance(result, bytes):
                return {"say": "end", "result": "raw"}, result
            return {"say": "end", "result": "json"}, encode_result(result, job.type)
        except BaseException as exc:
            if not self._line.is_ours:
                forks.end(exc)
            return {"say": "end", "error": pack_error(exc), "stage": stage}, b""

    def _tell_app(self, fact: Head) -> None:
        if self._line.is_ours:
            self._line.send({"say": "app", "fact": fact})


class PipeReports:
    """What `current()` can do in a handler's process: the worker does it."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def progress(self, job: Any, owner: str, share: float, note: str) -> None:
        self.progress_sync(job, owner, share, note)

    def progress_sync(self, job: Any, owner: str, share: float, note: str) -> None:
        from veredus.model.ending import write_progress

        write_progress(share, note, 0.0)  # raises what it would raise in the worker
        self._check("progress()")
        self._line.send({"say": "progress", "task": job.id, "share": share, "note": note})

    async def write_result(self, job: Any, owner: str, data: bytes) -> None:
        self._check("write_result()")
        answer = self._line.ask({"say": "write_result"}, data)
        if "error" in answer:
            raise rebuild(answer["error"])

    def wait_for(self, coroutine: Any) -> None:
        """It never waits for anything but the pipe."""
        try:
            coroutine.send(None)
        except StopIteration:
            return
        raise RuntimeError("a report waited")

    def client_of(self, job: Any) -> NoReturn:
        raise LookupError(
            'current().client does not work in a handler with run_in="process": let it run in a thread, or send with '
            "app.push_sync(...)"
        )

    def _check(self, what: str) -> None:
        if not self._line.is_ours:
            raise RuntimeError(f"{what} works in the process of the handler, not in a fork of it")


def _find_task(module: str, name: str) -> Any:
    """The task of this name, declared by importing the module that declared it in the worker."""
    from veredus.client.task import declared

    if module == MAIN and not hasattr(sys.modules.get(MAIN), "__file__"):
        raise ConfigError(
            "run_in", "process", f"a task that a process of its own can import; {name} was declared where only the "
            "worker has it (python -c, an interactive session, __main__.py): move it into a module"
        )  # fmt: skip
    importlib.import_module(module)
    task = declared(name, module)
    if task is None:
        raise ConfigError(
            "run_in", "process", f"a task that is declared whenever {module} is imported; after the import in a "
            f"process of its own, {name} is not there"
        )  # fmt: skip
    return task


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The handler runs outside of any event loop, so that it may run one of its own."""
    from veredus.worker.injection import dependencies, inject

    if not dependencies(function):
        return function(*args, **kwargs)
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        try:
            result = function(*args, **kwargs, **runner.run(inject(function, stack)))
        except BaseException as exc:
            runner.run(stack.__aexit__(type(exc), exc, exc.__traceback__))
            raise
        runner.run(stack.aclose())
        return result
