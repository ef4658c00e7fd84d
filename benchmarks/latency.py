"""How soon: pick-up by an idle worker, lateness of delayed tasks, and what idling costs."""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
import time
from pathlib import Path

from benchmarks.server import BenchServer, process_cpu, resident_mb
from benchmarks.tasks import stamp
from benchmarks.workers import worker
from veredus.model.build import build
from veredus.model.options import Options
from veredus.wire import keys
from veredus.wire.messages import encode_task


async def pick_up(server: BenchServer, count: int = 200) -> list[float]:
    """Milliseconds from enqueue to handler, worker idle before each."""

    async def send(number: int) -> None:
        await stamp.enqueue(time.time())

    return await _stamps(server, count, send, pause=0.01)


async def pick_up_from_go(server: BenchServer, count: int = 200) -> list[float]:
    """The same for a Go client's plain LPUSH, which notifies nobody."""

    async def send(number: int) -> None:
        push_like_go(server, "bench", f"go-{number}")

    return await _stamps(server, count, send, pause=0.01)


def push_like_go(server: BenchServer, queue: str, task_id: str) -> None:
    message = build("stamp", f'{{"due":{time.time()!r}}}'.encode(), Options(queue=queue, task_id=task_id))
    server.client.hset(
        keys.task(queue, message.id),
        mapping={"msg": encode_task(message), "state": "pending", "pending_since": time.time_ns()},
    )
    server.client.lpush(keys.pending(queue), message.id)


async def lateness(server: BenchServer, count: int = 200) -> list[float]:
    """Milliseconds by which tasks due at random moments begin too late."""

    async def send(number: int) -> None:
        delay = random.uniform(0.5, 3.0)
        await stamp.using(delay=delay).enqueue(time.time() + delay)

    return await _stamps(server, count, send, pause=0.0)


async def _stamps(server: BenchServer, count: int, send: object, pause: float) -> list[float]:
    server.flush()
    with tempfile.TemporaryDirectory(prefix="vb-") as folder:
        path = Path(folder) / "stamps"
        path.touch()
        with worker(server, BENCH_STAMPS=str(path)):
            await stamp.enqueue(time.time())
            await wait_for_lines(path, 1)
            for number in range(count):
                await send(number)  # type: ignore[operator]
                if pause:
                    await asyncio.sleep(pause)
            await wait_for_lines(path, count + 1)
        return sorted(float(line) * 1000 for line in path.read_text().split()[1:])


async def wait_for_lines(path: Path, wanted: int) -> None:
    while path.read_bytes().count(b"\n") < wanted:
        await asyncio.sleep(0.01)


async def idle(server: BenchServer, seconds: float = 10.0) -> dict[str, float]:
    """Client calls per second, CPU and memory of a worker that has nothing to do."""
    server.flush()
    server.client.sadd("asynq:queues", "bench")
    with worker(server, "-q", "bench") as process:
        await asyncio.sleep(2.0)
        cpu = process_cpu(process.pid)
        calls = await asyncio.to_thread(_monitored_calls, server.socket, seconds)
        return {
            "calls_per_second": calls / seconds,
            "cpu_percent": (process_cpu(process.pid) - cpu) / seconds * 100,
            "resident_mb": resident_mb(process.pid),
        }


def _monitored_calls(path: str, seconds: float) -> int:
    """Commands that clients sent meanwhile: MONITOR's lines, without those that scripts ran."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.connect(path)
        monitor.sendall(b"MONITOR\r\n")
        ends, data = time.monotonic() + seconds, b""
        while (left := ends - time.monotonic()) > 0:
            monitor.settimeout(left)
            try:
                data += monitor.recv(65536)
            except TimeoutError:
                break
    return sum(1 for line in data.split(b"\r\n") if line.startswith(b"+1") and b" lua]" not in line)
