"""ProcessPool: runs CPU-bound handlers in child processes, which are killed with their descendants at a timeout."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from multiprocessing import spawn
from typing import Any, cast

from veredus.errors import PayloadError, VeredusError
from veredus.handlers.calling import UnreadablePayload
from veredus.handlers.context import Context
from veredus.handlers.executors import log_relay
from veredus.handlers.executors.pipe import Head, Unpacker, pack
from veredus.handlers.executors.remote_errors import MAIN, pack_error, rebuild
from veredus.handlers.mux import AnyTask

START_TIMEOUT = 60.0
"""Seconds for a process to start and to import a task's module."""
KILL_TIMEOUT = 5.0
"""Seconds for all processes to end when the pool is closed."""


class ProcessDied(VeredusError):
    """The child process ended while it ran a task."""


class ProcessNotReady(ProcessDied):
    """The child process did not start, or not in time. No handler has begun."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The encoded result of a handler; None if it returned None."""

    data: bytes | None
    raw: bool = False
    """Whether the handler returned bytes, which are stored unchanged."""


class ProcessPool:
    """Child processes, each for one task at a time. Only JSON and bytes are exchanged with them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        self._ending: list[subprocess.Popen[bytes]] = []
        self._slots = asyncio.Semaphore(size)
        self._is_closed = False

    def free(self, busy: int) -> int:
        """How many more handlers can start, when `busy` tasks for processes are in flight."""
        return self._size - busy

    @contextlib.asynccontextmanager
    async def slot(self, task: AnyTask) -> AsyncIterator[ChildProcess]:
        """A child that has imported the task and is ready to run it."""
        async with self._slots:
            child = await self._ready(task)
            try:
                yield child
            finally:
                self._give_back(child)

    def close(self) -> None:
        """Kill all children, including busy ones, and start no others."""
        self._is_closed = True
        for child in list(self._all):
            self._end(child)
        self._idle.clear()
        give_up = time.monotonic() + KILL_TIMEOUT
        for process in self._ending:
            try:
                process.wait(max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._ending.clear()

    async def _ready(self, task: AnyTask) -> ChildProcess:
        """A child that has just confirmed that it is ready, so that one that died while idle fails no task."""
        self._ending = [process for process in self._ending if process.poll() is None]
        while True:
            if self._is_closed:
                raise ProcessNotReady("the worker is stopping and starts no more processes")
            is_used = bool(self._idle)
            child = self._idle.pop() if is_used else ChildProcess()
            self._all.add(child)
            try:
                await child.prepare(task)
            except ProcessDied:
                self._give_back(child)
                if not is_used:
                    raise
            except BaseException:
                self._give_back(child)
                raise
            else:
                return child

    def _give_back(self, child: ChildProcess) -> None:
        if child.is_free:
            self._idle.append(child)
        else:
            self._end(child)

    def _end(self, child: ChildProcess) -> None:
        if child in self._all:
            self._all.discard(child)
            child.kill()
            self._ending.append(child.process)


@dataclass(slots=True)
class _Run:
    """The current call of a child."""

    answer: asyncio.Future[tuple[Head, bytes]]
    surroundings: contextvars.Context
    """The context variables of the waiting coroutine. The child's log records are handled in them."""
    context: Context | None = None
    task: AnyTask | None = None


class ChildProcess(asyncio.Protocol):
    """The worker's end of one child process."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = (
                f"import sys; sys.path[:] = {sys.path!r}; from veredus.handlers.executors.child import main; "
                f"main({os.getpid()}, {theirs.fileno()})"
            )
            self.process = subprocess.Popen(
                [spawn.get_executable(), *_interpreter_flags(), "-c", command],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.setblocking(False)
        self._socket: socket.socket | None = ours
        self._transport: asyncio.Transport | None = None
        self._unpacker = Unpacker()
        self._run: _Run | None = None
        self._writing: set[asyncio.Task[None]] = set()
        self._gone = False

    @property
    def is_free(self) -> bool:
        return self._run is None and not self._gone and self.process.poll() is None

    async def prepare(self, task: AnyTask) -> None:
        """Have it load what this task needs, the first time. Raises what the import of the task's module raises."""
        head: Head = {"do": "prepare", "name": task.name, "module": _module_of(task)}
        if self._transport is None:
            await self._connect()
            head["main"] = _main()
        try:
            async with asyncio.timeout(START_TIMEOUT):
                answer, _ = await self._ask(_Run(_future(), contextvars.copy_context(), task=task), head)
        except ProcessDied as exc:
            raise ProcessNotReady(str(exc)) from None
        except TimeoutError:
            self._gone = True
            raise ProcessNotReady(f"the process of this task was not ready within {START_TIMEOUT:g} s") from None
        if "error" in answer:
            self._gone = True  # half of its modules are loaded: the next attempt gets a fresh one
            raise rebuild(answer["error"])

    async def run(self, task: AnyTask, message: bytes, context: Context) -> Returned:
        """Run the task's handler. Cancelling this kills the child and its descendants."""
        head = {
            "do": "run",
            "name": task.name,
            "id": context.id,
            "queue": context.queue,
            "deadline": context.deadline.timestamp(),
            "app": task.app.surroundings(),
        }
        answer, body = await self._ask(_Run(_future(), contextvars.copy_context(), context, task), head, message)
        if "error" not in answer:
            return Returned(body, answer["result"] == "raw") if "result" in answer else Returned(None)
        error = rebuild(answer["error"])
        if answer["stage"] == "payload" and isinstance(error, PayloadError):
            raise UnreadablePayload from error
        if isinstance(error, StopIteration | GeneratorExit):  # a coroutine must not end with these
            raise RuntimeError(f"the handler raised {error!r}") from error
        raise error

    def kill(self) -> None:
        """Kill the child and its descendants."""
        self._gone = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)  # handled by the guard
        if self._transport is not None:
            self._transport.abort()
        elif self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _connect(self) -> None:
        self._transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=self._socket)
        self._transport.write(pack({"levels": log_relay.levels()}))

    async def _ask(self, run: _Run, head: Head, body: bytes = b"") -> tuple[Head, bytes]:
        """Send a message and wait for the answer. A child that did not answer stays busy."""
        if self._gone or self._transport is None:
            raise self._died()
        self._run = run
        self._transport.write(pack(head, body))
        answer = await run.answer
        self._run = None
        return answer

    def _died(self) -> ProcessDied:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        code = self.process.returncode
        how = f"ended with exit code {code}" if code is None or code >= 0 else f"was ended by {_signal_name(-code)}"
        return ProcessDied(f"the process of this task {how}")

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._socket = cast(asyncio.Transport, transport), None

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        if self._run is not None and not self._run.answer.done():
            self._run.answer.set_exception(self._died())

    def data_received(self, data: bytes) -> None:
        for head, body in self._unpacker.feed(data):
            self._received(head, body)

    def _received(self, head: Head, body: bytes) -> None:
        run = self._run
        match head["say"]:
            case "log":
                where = run.surroundings if run is not None and self._is_of(run, head) else contextvars.Context()
                where.run(log_relay.handle, head["record"])
            case "progress" if run is not None and run.context is not None and self._is_of(run, head):
                run.surroundings.run(run.context.progress_sync, head["share"], head["note"])
            case "line" if run is not None and run.context is not None and self._is_of(run, head):
                run.context.log(head["text"])
            case "write_result" if run is not None and run.context is not None:
                self._write_result(run.context, body)
            case "app" if run is not None and run.task is not None:
                run.task.app.heard(head["fact"])
            case "ready" | "end" if run is not None and not run.answer.done():
                run.answer.set_result((head, body))

    def _is_of(self, run: _Run, head: Head) -> bool:
        """False for a thread that an earlier handler left behind."""
        return run.context is not None and head.get("task") == run.context.id

    def _write_result(self, context: Context, data: bytes) -> None:
        async def write() -> None:
            answer: Head = {}
            try:
                await context.write_result(data)
            except Exception as exc:  # any error is sent to the waiting handler
                answer = {"error": pack_error(exc)}
            if self._transport is not None and not self._gone:
                self._transport.write(pack(answer))

        task = asyncio.get_running_loop().create_task(write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _module_of(task: AnyTask) -> str:
    return MAIN if task.declared_in == "__main__" else task.declared_in


def _main() -> Head:
    """The worker's paths, arguments, folder and script, as multiprocessing passes them to a child."""
    data: Head = spawn.get_preparation_data("veredus")
    data.pop("authkey", None)
    return data


def _interpreter_flags() -> list[str]:
    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    return flags


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
