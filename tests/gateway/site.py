"""The app that the gateway's test processes serve."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from veredus import App, current
from veredus.gateway.client_hooks import CloseReason, ConnectedClient

app = App(os.environ.get("VEREDUS_REDIS_URL", "redis://127.0.0.1:1/0"), queue="site")


@app.action("work", max_retry=50, retry_delay=0.05, deadline=120)
async def work(n: int, ms: float = 0, gate: str = "") -> dict[str, Any]:
    """Tells its client two things meanwhile, one before and one after the answer; waits for the file `gate`."""
    client = current().client
    await client.notify({"own": "after", "n": n}, type="own", when="after")
    await client.notify({"own": 1, "n": n}, type="progress")
    await asyncio.sleep(ms / 1000)
    while gate and not os.path.exists(gate):
        await asyncio.sleep(0.02)
    await client.notify({"own": 2, "n": n}, type="progress")
    await client.notify({"own": "before", "n": n}, type="own", when="before")
    return {"n": n}


@app.action("echo", where="gateway")
async def echo(text: str) -> str:
    return text


def _note(key: str) -> str:
    """Every run of a handler is a line in a file: whose it was, and which process ran it."""
    with open(os.environ["VEREDUS_TEST_RUNS"], "a") as runs:
        runs.write(f"{key} {os.getpid()}\n")
    return key


@app.action("note", max_retry=50, retry_delay=0.05, deadline=100)
async def note(key: str) -> str:
    return _note(key)


@app.action("note_here", where="gateway", deadline=100)
async def note_here(key: str) -> str:
    return _note(key)


@app.on_connect
def came(client: ConnectedClient) -> None:
    if client.user == "hooked":
        print(f"came {client.session} {client.result} {client.generation}", flush=True)


@app.on_disconnect
def went(client: ConnectedClient, reason: CloseReason) -> None:
    if client.user == "hooked":
        print(f"went {client.session} {client.generation} {reason}", flush=True)
