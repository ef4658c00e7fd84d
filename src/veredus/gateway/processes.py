"""Runs gateway processes: one in the foreground, or several under a supervisor that replaces those that die."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from typing import TYPE_CHECKING

from veredus.signals import StopSignals, done_unless, stop_signals
from veredus.worker.family import EXIT_CONFIG, EXIT_NO_REDIS, Child, Family
from veredus.worker.supervisor import KILL_AFTER, SAME_WISH, loop_factory

if TYPE_CHECKING:
    from veredus.gateway.server import Gateway


def run_gateway(gateway: Gateway) -> int:
    """One gateway in this process: SIGTERM and SIGINT drain it, a second one ends it at once."""

    async def main(signals: StopSignals) -> int:
        wanted, hurry = asyncio.Event(), asyncio.Event()
        heard = 0.0

        def stop_wanted() -> None:
            nonlocal heard
            now = time.monotonic()
            if wanted.is_set() and now - heard > SAME_WISH:
                hurry.set()
            heard = now
            wanted.set()
            gateway.request_stop()

        signals.tell_loop(stop_wanted)
        if not await done_unless(wanted, gateway.start()):
            return 0
        gc.collect()
        gc.freeze()  # what was loaded stays: no long collections
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
    """Several gateways, each in a process of its own, that share the port of WebSocket."""
    return _Gateways(gateway).run()


class _Gateways(Family):
    """Gateways; one that is replaced gets the ports that the dead one had."""

    kind = "gateway"

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway.config.processes)
        self._gateway = gateway

    def live(self, child: Child) -> int:
        from veredus.gateway.server import Gateway

        return run_gateway(Gateway(self._gateway.app, self._gateway.config, index=child.index))

    def patience(self) -> float:
        return self._gateway.config.drain + KILL_AFTER

    def ended(self, child: Child, code: int) -> int:
        if code == 0 and self._stopping:
            return 0
        self.complain(child, code)
        if self._stopping:
            return 0 if code == -signal.SIGTERM else 1
        if code in (EXIT_CONFIG, EXIT_NO_REDIS):
            self.stop()  # the others would not serve what was asked for
            return code
        self.replace(child)
        return 0
