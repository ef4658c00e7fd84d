"""Runs gateway processes: one in the foreground, or several under a supervisor that replaces those that die."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from veredus.errors import ConfigError, StoreError
from veredus.worker.parentage import end_with_parent
from veredus.worker.supervisor import EXIT_CONFIG, EXIT_NO_REDIS, KILL_AFTER, SAME_WISH, SIGNALS, loop_factory

if TYPE_CHECKING:
    from veredus.gateway.server import Gateway

logger = logging.getLogger("veredus.supervisor")


def run_gateway(gateway: Gateway) -> int:
    """One gateway in this process: SIGTERM and SIGINT drain it, a second one ends it at once."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        await gateway.start()
        gc.collect()
        gc.freeze()  # what was loaded stays: no long collections
        hurry = asyncio.Event()
        heard = -math.inf

        def wanted() -> None:
            nonlocal heard
            now = time.monotonic()
            if now - heard > SAME_WISH and heard > 0:
                hurry.set()
            heard = now
            gateway.request_stop()

        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            for number in SIGNALS:
                loop.add_signal_handler(number, wanted)
        await gateway.wait()
        stopping = asyncio.create_task(gateway.stop())
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait([stopping, hurried], return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not stopping.done():
            stopping.cancel()
            await asyncio.wait([stopping])
            await gateway.stop(drain=0.0)
        return 0

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main())


def run_several(gateway: Gateway) -> int:
    """Several gateways, each in a process of its own, that share the port of WebSocket."""
    return _Supervisor(gateway).run()


class _Supervisor:
    """Forks the children, waits for them and replaces the dead, each with the ports that it had."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._children: dict[int, tuple[int, float]] = {}
        """By pid: which one it is, and since when."""
        self._due: list[tuple[float, int]] = []
        self._failures = 0
        self._stopping = False

    def run(self) -> int:
        for number in SIGNALS:
            signal.signal(number, self._forward)
        signal.signal(signal.SIGALRM, self._kill_the_rest)
        logger.info("supervisor %d starts %d gateway processes", os.getpid(), self._gateway.config.processes)
        for index in range(self._gateway.config.processes):
            self._spawn(index)
        code = 0
        while self._children or (self._due and not self._stopping):
            pid, status = self._next_end()
            child = self._children.pop(pid, None)
            if child is not None:
                code = max(code, self._ended(pid, *child, os.waitstatus_to_exitcode(status)))
        return code

    def _forward(self, number: int, frame: Any) -> None:
        if not self._stopping:
            self._stopping = True
            signal.setitimer(signal.ITIMER_REAL, self._gateway.config.drain + KILL_AFTER)
        for pid in list(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _kill_the_rest(self, number: int, frame: Any) -> None:
        for pid in list(self._children):
            logger.error("gateway process %d does not stop: it is killed", pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _next_end(self) -> tuple[int, int]:
        if not self._due or self._stopping:
            return os.waitpid(-1, 0)
        ended = os.waitpid(-1, os.WNOHANG) if self._children else (0, 0)
        if not ended[0]:
            now = time.monotonic()
            ripe = [index for at, index in self._due if at <= now]
            self._due = [(at, index) for at, index in self._due if at > now]
            for index in ripe:
                self._spawn(index)
            time.sleep(0.02)
        return ended

    def _spawn(self, index: int) -> None:
        from veredus.gateway.server import Gateway

        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # one that comes in between must reach the child too
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _live_as_child(Gateway(self._gateway.app, self._gateway.config, index=index), parent)
        self._children[pid] = (index, time.monotonic())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if self._stopping:
            os.kill(pid, signal.SIGTERM)

    def _ended(self, pid: int, index: int, since: float, code: int) -> int:
        if code == 0 and self._stopping:
            return 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        logger.error("gateway process %d ended with %s", pid, how)
        if self._stopping:
            return 0 if code == -signal.SIGTERM else 1
        if code in (EXIT_CONFIG, EXIT_NO_REDIS):
            self._forward(signal.SIGTERM, None)  # the others would not serve what was asked for
            return code
        now = time.monotonic()
        self._failures = 0 if now - since > 5.0 else self._failures + 1
        self._due.append((now + (min(0.1 * 2.0**self._failures, 10.0) if self._failures else 0.0), index))
        return 0


def _live_as_child(gateway: Gateway, parent: int) -> None:
    """Never returns."""
    code = 1
    try:
        end_with_parent(parent, signal.SIGTERM)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor passes it on
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        code = run_gateway(gateway)
    except ConfigError as exc:
        logger.error("%s", exc)
        code = EXIT_CONFIG
    except StoreError as exc:
        logger.error("%s", exc)
        code = EXIT_NO_REDIS
    except BaseException:
        logger.exception("gateway process failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        logging.shutdown()
        os._exit(code)
