"""Runs one gateway in this process, or several under a supervisor that replaces those that die."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from typing import TYPE_CHECKING

from veredus.process.signals import StopSignals, done_unless, stop_signals
from veredus.process.supervisor import (
    EXIT_CONFIG,
    EXIT_NO_REDIS,
    KILL_AFTER,
    SAME_REQUEST,
    SupervisedProcess,
    Supervisor,
    loop_factory,
)

if TYPE_CHECKING:
    from veredus.gateway.gateway import Gateway


def run_gateway(gateway: Gateway) -> int:
    """Run one gateway in this process. SIGTERM or SIGINT drains it; a second signal ends it at once."""

    async def main(signals: StopSignals) -> int:
        stop_requested, hurry = asyncio.Event(), asyncio.Event()
        signalled_at = 0.0

        def on_signal() -> None:
            nonlocal signalled_at
            now = time.monotonic()
            if stop_requested.is_set() and now - signalled_at > SAME_REQUEST:
                hurry.set()
            signalled_at = now
            stop_requested.set()
            gateway.request_stop()

        signals.notify_loop(on_signal)
        if not await done_unless(stop_requested, gateway.start()) and not gateway.serving:
            return 0
        gc.collect()
        gc.freeze()  # loaded modules stay: keep collections short
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

    with stop_signals() as signals, asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main(signals))


def run_several(gateway: Gateway) -> int:
    """Run several gateway processes that share the WebSocket port."""
    return GatewaySupervisor(gateway).run()


class GatewaySupervisor(Supervisor):
    """A replacement gets the ports of the process that died."""

    kind = "gateway"

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway.config.processes)
        self._gateway = gateway

    def live(self, child: SupervisedProcess) -> int:
        from veredus.gateway.gateway import Gateway

        return run_gateway(Gateway(self._gateway.app, self._gateway.config, index=child.index))

    def patience(self) -> float:
        return self._gateway.config.drain + KILL_AFTER

    def ended(self, child: SupervisedProcess, code: int) -> int:
        if code == 0 and self._stopping:
            return 0
        self.log_exit(child, code)
        if self._stopping:
            return 0 if code == -signal.SIGTERM else 1
        if code in (EXIT_CONFIG, EXIT_NO_REDIS):
            self.stop()  # the other processes have the same wrong settings
            return code
        self.replace(child)
        return 0
