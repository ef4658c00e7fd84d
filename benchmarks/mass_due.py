"""A million tasks that are due in the same second: what everybody else notices of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import redis

from benchmarks.drain import drain
from benchmarks.server import BenchServer
from benchmarks.workers import worker
from veredus.model.build import build
from veredus.model.options import Options
from veredus.wire.messages import encode_task

_SCHEDULE = """
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local id = string.format('%08d', number)
  redis.call('HSET', 'asynq:{bench}:t:' .. id, 'msg', ARGV[3], 'state', 'scheduled')
  redis.call('ZADD', 'asynq:{bench}:scheduled', ARGV[4], id)
  redis.call('ZADD', 'asynq:{bench}:due', ARGV[4] * 1000 - 999 + math.floor(number * 999 / ARGV[5]), id)
end
"""
"""Due all over one second, in the order of their numbers."""


@dataclass(frozen=True)
class MassDue:
    rate: float
    """Tasks per second that one worker runs meanwhile."""
    usual: float
    """The same from a queue in which they are pending."""
    pings: list[float]
    """Milliseconds, sorted."""
    slowest: float
    """Milliseconds of the slowest command."""
    overtaken: int
    """Tasks seen among the active ones in front of one that is due earlier, out of `looked_at`."""
    looked_at: int


async def mass_due(server: BenchServer, count: int) -> MassDue:
    usual = (await drain(server, min(count, 200_000))).rate
    server.flush()
    message = encode_task(build("noop", b'{"data":"' + b"x" * 80 + b'"}', Options(queue="bench", task_id="x" * 8)))
    schedule = server.client.register_script(_SCHEDULE)
    due = int(time.time()) - 1
    for first in range(0, count, 5_000):
        schedule(args=[first, min(first + 5_000, count) - 1, message, due, count])
    server.client.sadd("asynq:queues", "bench")
    server.client.config_set("slowlog-log-slower-than", 1000)
    server.client.slowlog_reset()
    pings: list[float] = []
    order = _Order()
    over = threading.Event()
    pinger = threading.Thread(target=_ping, args=(server.socket, pings, over))
    with worker(server):
        pinger.start()
        began, start = await _reach(server, count // 20)
        ended, stop = await _reach(server, count * 6 // 10, order)
        over.set()
        pinger.join()
        slowest = max((entry["duration"] for entry in server.client.slowlog_get(128)), default=0) / 1000
    return MassDue((stop - start) / (ended - began), usual, sorted(pings), slowest, order.overtaken, order.looked_at)


class _Order:
    """Looks at the active tasks now and then: the one taken last comes first in their list."""

    def __init__(self) -> None:
        self.overtaken = self.looked_at = 0
        self._newest = -1
        self._seen: set[int] = set()

    def look(self, active: Sequence[bytes]) -> None:
        numbers = [int(task_id) for task_id in reversed(active)]
        new = [number for number in numbers if number not in self._seen]
        self.overtaken += sum(1 for one, other in pairwise(numbers) if one > other)
        self.overtaken += sum(1 for number in new if number < self._newest)
        self.looked_at += len(new)
        self._newest, self._seen = max([self._newest, *new]), set(numbers)


async def _reach(server: BenchServer, number: int, order: _Order | None = None) -> tuple[float, int]:
    while (done := int(server.client.get("asynq:{bench}:processed") or 0)) < number:
        if order is not None:
            order.look(server.client.lrange("asynq:{bench}:active", 0, -1))
        await asyncio.sleep(0.02)
    return time.perf_counter(), done


def _ping(socket: str, pings: list[float], over: threading.Event) -> None:
    client = redis.Redis(unix_socket_path=socket)
    while not over.is_set():
        began = time.perf_counter()
        client.ping()
        pings.append((time.perf_counter() - began) * 1000)
        time.sleep(0.001)
    client.close()
