"""A worker process gets SIGTERM: what can finish in time finishes, the rest is given back and run by the next worker.

No server needed: `python examples/graceful_stop.py`.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from veredus import App, current

app = App()


@app.task(queue="stopping")
async def work(seconds: float) -> str:
    await current().progress(0.1, "begun")
    await asyncio.sleep(seconds if current().attempt == 1 and "FIRST" in os.environ else 0)
    return f"{seconds} s: attempt {current().attempt} in the {'first' if 'FIRST' in os.environ else 'second'} worker"


async def worker(**environment: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "veredus", "worker", "graceful_stop:app", "--shutdown-timeout", "1"]
    folder = Path(__file__).parent
    return await asyncio.create_subprocess_exec(
        *command, "--log-level", "warning", cwd=folder, env=os.environ | environment
    )


async def main() -> None:
    async with app:
        short, long = await work.enqueue(0.6), await work.enqueue(3600)
        first = await worker(FIRST="1")
        for handle in (short, long):
            async for _ in handle.progress():
                break  # it has begun
        first.send_signal(signal.SIGTERM)
        print("stopped with exit code", await first.wait())
        print((await long.status()).state, "again; attempts that failed:", (await long.status()).retried)
        second = await worker()
        print(await short.result(timeout=30))
        print(await long.result(timeout=30))
        second.send_signal(signal.SIGTERM)
        await second.wait()


if __name__ == "__main__":
    asyncio.run(main())
