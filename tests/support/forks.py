"""Something done in a fork of the test's process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from typing import Any

from tests.support.waiting import PATIENCE


async def in_a_fork(body: Callable[[], Any]) -> Any:
    """What this returns in a fork, as JSON. It ends there, whatever happens."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE))
        try:
            said = json.dumps(body())
        except BaseException as exc:
            said = json.dumps(repr(exc))
        os.write(writes, said.encode())
        os._exit(0)
    os.close(writes)
    with open(reads, "rb") as pipe:
        answer = await asyncio.to_thread(pipe.read)
    await asyncio.to_thread(os.waitpid, pid, 0)
    return json.loads(answer)
