"""The process of a handler: runs one task after the other, until the worker closes the connection or dies."""

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

from veredus.errors import ConfigError, PayloadError
from veredus.handlers.executors import log_relay
from veredus.handlers.executors.guard import guard
from veredus.handlers.executors.pipe import Head, Pipe
from veredus.handlers.executors.remote_errors import MAIN, pack_error, rebuild
from veredus.model.failure import concerns
from veredus.process import forks


def main(parent: int, descriptor: int) -> None:
    connection = socket.socket(fileno=descriptor)
    guard(parent, connection)
    try:
        ChildRunner(Pipe(connection)).serve()
    except (EOFError, OSError):
        pass  # the worker died, or ends this process


class ChildRunner:
    """Serves the worker at the other end of a pipe."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._tasks: dict[str, Any] = {}
        self._pid = os.getpid()
        self._levels: dict[str, int] = {}

    def serve(self) -> None:
        setting, _ = self._pipe.receive()
        self._levels = setting["levels"]
        log_relay.relay(self._pipe, self._levels)
        while True:
            head, body = self._pipe.receive()
            answer, result = self._prepare(head) if head["do"] == "prepare" else self._run(head, body)
            self._pipe.send(answer, result)

    def _prepare(self, head: Head) -> tuple[Head, bytes]:
        """Import the module of a task. This does not count towards its timeout."""
        if head["name"] in self._tasks:
            return {"say": "ready"}, b""
        try:
            if "main" in head:
                spawn.prepare(head["main"])
            self._tasks[head["name"]] = _find_task(head["module"], head["name"])
            import veredus.wire.messages  # noqa: F401 - loads what the first task needs
        except BaseException as exc:  # an import may raise anything; the worker reports it
            return {"say": "end", "error": pack_error(exc)}, b""
        finally:
            log_relay.relay(self._pipe, self._levels)
        return {"say": "ready"}, b""

    def _run(self, head: Head, message: bytes) -> tuple[Head, bytes]:
        from veredus.handlers.context import Context, enter
        from veredus.model.job import Job
        from veredus.wire.messages import decode_task
        from veredus.wire.results import encode_result

        stage = "payload"
        try:
            task = self._tasks[head["name"]]
            task.app.move_to(head["app"], self._send_fact)
            decoded = decode_task(message)
            decoded.id, decoded.queue = head["id"], head["queue"]
            job = Job(decoded)
            enter(Context(job, head["deadline"], reports=PipeReports(self._pipe)))
            try:
                args, kwargs = task.codec.decode(job)
            except PayloadError as exc:
                concerns(exc, task.function)
                raise
            stage = "handler"
            result = _call(task.function, args, kwargs)
            if not self._pipe.is_ours:
                forks.end(None)
            stage = "result"
            if result is None:
                return {"say": "end"}, b""
            if isinstance(result, bytes):
                return {"say": "end", "result": "raw"}, result
            return {"say": "end", "result": "json"}, encode_result(result, job.type)
        except BaseException as exc:  # a handler may raise anything; the worker reports it
            if not self._pipe.is_ours:
                forks.end(exc)
            rule = task.retry_rule if stage == "handler" else None
            return {"say": "end", "error": pack_error(exc, rule), "stage": stage}, b""

    def _send_fact(self, fact: Head) -> None:
        if self._pipe.is_ours:
            self._pipe.send({"say": "app", "fact": fact})


class PipeReports:
    """Passes what a handler reports through `current()` to the worker."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    async def progress(self, job: Any, owner: str, share: float, note: str) -> None:
        self.progress_sync(job, owner, share, note)

    def progress_sync(self, job: Any, owner: str, share: float, note: str) -> None:
        from veredus.model.task_status import write_progress

        write_progress(share, note, 0.0)  # raises what it would raise in the worker
        self._check("progress()")
        self._pipe.send({"say": "progress", "task": job.id, "share": share, "note": note})

    def log(self, context: Any, text: str) -> None:
        from veredus.model.attempts import MOST_LINE
        from veredus.model.failure import cut

        self._check("log()")
        self._pipe.send({"say": "line", "task": context.id, "text": cut(text, MOST_LINE)})

    async def write_result(self, job: Any, owner: str, data: bytes) -> None:
        self._check("write_result()")
        answer = self._pipe.ask({"say": "write_result"}, data)
        if "error" in answer:
            raise rebuild(answer["error"])

    def wait_for(self, coroutine: Any) -> None:
        """Run a coroutine of this class, which only blocks on the pipe."""
        try:
            coroutine.send(None)
        except StopIteration:
            return
        raise RuntimeError("a report must not wait for an event loop")

    def client_of(self, job: Any) -> NoReturn:
        raise LookupError(
            'current().client does not work in a handler with run_in="process": run it in a thread, or send with '
            "app.push_sync(...)"
        )

    def durable_run(self, context: Any, owner: str) -> NoReturn:
        raise ConfigError(
            "run_in",
            "process",
            "'loop' or 'thread' for a handler with durable calls (step, sleep, wait_for, run, gather)",
        )

    @property
    def children(self) -> NoReturn:
        self.durable_run(None, "")

    def run_blocking(self, coroutine: Any) -> NoReturn:
        coroutine.close()
        self.durable_run(None, "")

    def _check(self, what: str) -> None:
        if not self._pipe.is_ours:
            raise RuntimeError(f"{what} works only in the process of the handler, not in a fork of it")


def _find_task(module: str, name: str) -> Any:
    """Import the module that declares the task in the worker; returns the task."""
    from veredus.client.task import declared, late

    if module == MAIN and not hasattr(sys.modules.get(MAIN), "__file__"):
        raise ConfigError(
            "run_in", "process", f"a task that another process can import; {name} was declared where only the "
            "worker has it (python -c, an interactive session, __main__.py): move it into a module"
        )  # fmt: skip
    importlib.import_module(module)
    task = declared(name, module)
    if task is None:
        for app in list(late):  # it is in a module that the app of this one includes by name
            app.load()
        task = declared(name, module)
    if task is None:
        raise ConfigError(
            "run_in", "process", f"a task that is declared whenever {module} is imported; after the import in "
            f"another process, {name} is missing"
        )  # fmt: skip
    return task


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the handler outside of an event loop, so that it can run its own."""
    from veredus.handlers.injection import dependencies, inject

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
