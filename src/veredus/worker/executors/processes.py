"""CPU work runs here: child processes that are killed when an attempt runs over its time."""

from __future__ import annotations

import asyncio
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from veredus.errors import PayloadError, RevokeTask, SkipRetry, VeredusError
from veredus.model.job import Job
from veredus.worker.injection import dependencies, inject
from veredus.worker.parentage import end_with_parent

_KINDS: dict[str, type[BaseException]] = {"revoke": RevokeTask, "skip": SkipRetry, "payload": PayloadError}


class ProcessDied(VeredusError):
    """The child process ended in the middle of a task."""


class RemoteError(VeredusError):
    """What the handler raised in the child process: its class and its words."""


class ProcessPool:
    """Children that wait for work. Only bytes pass between: the task's module and name, and its encoded message."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._context = multiprocessing.get_context("spawn")
        self._idle: list[_Child] = []
        self._slots = asyncio.Semaphore(size)

    def room(self, in_hand: int) -> int:
        """How many more can run at once, when so many tasks for processes are in hand already."""
        return self._size - in_hand

    async def run(self, function: Callable[..., Any], message: bytes) -> bytes | None:
        """Run a task's handler in a child; the encoded result. Cancelling kills the child."""
        async with self._slots:
            child = self._idle.pop() if self._idle else _Child(self._context)
            try:
                result = await child.call(function, message)
            except BaseException as exc:
                if isinstance(exc, ProcessDied) or not isinstance(exc, Exception):
                    child.kill()
                else:
                    self._idle.append(child)
                raise
            self._idle.append(child)
            return result

    def close(self) -> None:
        for child in self._idle:
            child.kill()
        self._idle.clear()


class _Child:
    def __init__(self, context: Any) -> None:
        self._pipe, far_end = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(far_end, os.getpid()), daemon=True)
        self._process.start()
        far_end.close()

    async def call(self, function: Callable[..., Any], message: bytes) -> bytes | None:
        address = f"{_module_of(function)}:{function.__qualname__}"
        try:
            self._pipe.send_bytes(address.encode() + b"\0" + message)
            await self._readable()
            reply = self._pipe.recv_bytes()
        except (EOFError, OSError) as exc:
            self._process.join(1.0)
            raise ProcessDied(f"the process of this task ended with exit code {self._process.exitcode}") from exc
        kind, _, body = bytes(reply).partition(b"\0")
        if kind == b"result":
            return body
        if kind == b"none":
            return None
        error: str = json.loads(body)
        raise _KINDS.get(kind.decode(), RemoteError)(error)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()

        def notice() -> None:
            if not ready.done():
                ready.set_result(None)

        loop.add_reader(self._pipe.fileno(), notice)
        try:
            await ready
        finally:
            loop.remove_reader(self._pipe.fileno())

    def kill(self) -> None:
        self._process.kill()
        self._pipe.close()


def _module_of(function: Callable[..., Any]) -> str:
    if function.__module__ != "__main__":
        return function.__module__
    # spawn makes a script importable in the child under this name
    return "__mp_main__"


def _serve(pipe: Connection, parent: int) -> None:
    """The child's life: one task after the other, until the parent closes the pipe or dies."""
    end_with_parent(parent, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides what it means
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    while True:
        try:
            request = pipe.recv_bytes()
            address, _, message = request.partition(b"\0")
            pipe.send_bytes(_answer(address.decode(), message))
        except (EOFError, OSError):
            return


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The handler runs outside of any event loop, so that it may run one of its own."""
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


def _answer(address: str, message: bytes) -> bytes:
    from veredus.model.message import deadline_of
    from veredus.model.verdict import describe, wraps
    from veredus.wire.messages import decode_task
    from veredus.wire.payload import encode_value
    from veredus.worker.context import Context, enter

    unread = True
    try:
        module, _, qualname = address.partition(":")
        task: Any = importlib.import_module(module)
        for part in qualname.split("."):
            task = getattr(task, part)
        job = Job(decode_task(message))
        enter(Context(job, deadline_of(job.message, time.time())))
        args, kwargs = task.codec.decode(job)
        unread = False
        result = _call(task.function, args, kwargs)
        return (
            b"none\0"
            if result is None
            else b"result\0" + (result if isinstance(result, bytes) else encode_value(result))
        )
    except BaseException as exc:
        kind = next((name for name, error in _KINDS.items() if wraps(exc, error)), "error")
        if kind == "payload" and not unread:
            kind = "error"  # of another task, which this one wanted to send: no reason not to try again
        text = describe(exc)
        if kind == "error" and type(exc).__name__ not in text:
            text = f"{type(exc).__name__}: {text}"
        return kind.encode() + b"\0" + json.dumps(text).encode()
