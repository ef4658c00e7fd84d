"""Runs a worker with settings that the command line does not have, and with a fault planted into this process only."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import os
import signal
import sys
from typing import Any

from veredus.cli.logs import configure
from veredus.worker import supervisor
from veredus.worker.roles import recoverer


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def plant(target: str, when: str, nth: int = 1) -> None:
    """Die at the n-th call of `module:Class.method`: before it, after it, or (`during`) once its request has left."""
    module, _, path = target.partition(":")
    owner_name, _, name = path.partition(".")
    owner = getattr(importlib.import_module(module), owner_name)
    real = getattr(owner, name)
    calls = 0

    def counted() -> bool:
        nonlocal calls
        calls += 1
        return calls == nth

    @functools.wraps(real)
    async def deadly_async(*args: Any, **kwargs: Any) -> Any:
        now = counted()
        if now and when == "before":
            die()
        if now and when == "during":
            asyncio.ensure_future(real(*args, **kwargs))  # noqa: RUF006
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            die()
        reply = await real(*args, **kwargs)
        if now:
            die()
        return reply

    @functools.wraps(real)
    def deadly(*args: Any, **kwargs: Any) -> Any:
        now = counted()
        if now and when == "before":
            die()
        reply = real(*args, **kwargs)
        if now:
            die()
        return reply

    setattr(owner, name, deadly_async if inspect.iscoroutinefunction(real) else deadly)


def plant_in_claim() -> None:
    """Die with tasks claimed and nothing decided about them."""
    real = recoverer.Recoverer._decide

    def decide(self: Any, queue: str, owner: str, claimed: Any) -> Any:
        if claimed:
            die()
        return real(self, queue, owner, claimed)

    recoverer.Recoverer._decide = decide  # type: ignore[method-assign]


def main(url: str, settings: dict[str, Any], fault: Any = None, claim_ms: int = 0, kill_after: float = 0.0) -> int:
    configure("info", "text")
    shop = importlib.import_module("shop")
    if claim_ms:
        recoverer.CLAIM_MS = claim_ms
    if kill_after:
        supervisor.KILL_AFTER = kill_after  # type: ignore[attr-defined]
    if fault == "claim":
        plant_in_claim()
    elif fault:
        plant(*fault)
    shop.app.use(url)
    return int(shop.app.worker(**settings).run())


if __name__ == "__main__":
    sys.exit(main(**json.loads(sys.argv[1])))
