"""A process of one version: a worker, a scheduler, or a side that does what it is told, one line of JSON per call."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import sys
from typing import Any

from veredus import App
from veredus.cli.logs import configure
from veredus.peer import connect

app: App = importlib.import_module("shop").app


class Side:
    """Everything that a program can ask of Veredus, in the version that is imported here."""

    def __init__(self) -> None:
        self._open = contextlib.AsyncExitStack()
        self._flow: asyncio.Task[None] | None = None
        self._peer: Any = None

    async def version(self) -> str:
        import veredus

        return veredus.__file__

    # Producing.

    async def enqueue(self, type: str, payload: Any = None, **options: Any) -> dict[str, Any]:
        sent = payload.encode() if isinstance(payload, str) else payload or {}  # bytes are sent unchecked
        handle = await app.enqueue(type, sent, **options)
        return {"id": handle.id, "state": str(handle.state), "created": handle.created}

    async def enqueue_many(self, type: str, payloads: list[Any], **options: Any) -> list[str]:
        calls = [app.call(type, payload, **options) for payload in payloads]
        return [handle.id for handle in await app.enqueue_many(calls)]

    async def flow(self, count: int, every: float, name: str) -> None:
        """Begin to produce so many: every third is retried once, every fourth takes a while, every fifth is delayed."""
        self._flow = asyncio.ensure_future(self._produce(count, every, name))

    async def _produce(self, count: int, every: float, name: str) -> None:
        sent = os.open("sent", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for n in range(count):
            options: dict[str, Any] = {"delay": 0.3} if n % 5 == 0 else {}
            payload = {"n": n, "fails": int(n % 3 == 0), "seconds": 0.2 * (n % 4 == 0)}
            handle = await app.enqueue("job", payload, task_id=f"{name}-{n}", **options)
            os.write(sent, f"{handle.id}\n".encode())  # only now it is promised
            await asyncio.sleep(every)
        os.close(sent)

    async def flown(self) -> None:
        """Wait for the end of the flow."""
        if self._flow is not None:
            await self._flow

    # What becomes of it.

    async def result(self, id: str, queue: str, timeout: float = 30.0) -> Any:
        return await app.handle(id, queue=queue).result(timeout=timeout)

    async def status(self, id: str, queue: str) -> dict[str, Any]:
        status = await app.handle(id, queue=queue).status()
        return {"state": str(status.state), "error": status.error, "retried": status.retried}

    async def cancel(self, id: str, queue: str, then: str = "archive") -> str:
        return str(await app.cancel(id, queue=queue, then=then))

    async def pause(self, queue: str) -> bool:
        return await app.pause(queue)

    async def resume(self, queue: str) -> bool:
        return await app.resume(queue)

    # Looking.

    async def findings(self) -> list[str]:
        """What the doctor says of tasks; how the server is set up is no matter here."""
        return [f"{one.kind}: {one.text}" for one in await app.inspector().doctor.diagnose() if one.queue]

    async def tasks(self, queue: str, state: str, group: str | None = None) -> list[dict[str, Any]]:
        shown = await app.inspector().tasks(queue, state, group=group, size=1000)
        wanted = ("id", "type", "state", "max_retry", "retried", "last_error", "unique_key", "group")
        return [
            {**{name: getattr(one, name) for name in wanted}, "payload": one.payload.decode()}
            for one in sorted(shown, key=lambda one: one.id)
        ]

    async def task(self, queue: str, id: str) -> dict[str, Any]:
        one = await app.inspector().task(queue, id)
        return {"state": str(one.state), "last_error": one.last_error, "traceback": getattr(one, "traceback", "")}

    async def counts(self, queue: str) -> dict[str, int]:
        info = await app.inspector().queue(queue)
        names = ("pending", "active", "scheduled", "retry", "archived", "completed", "aggregating")
        return {name: getattr(info, name) for name in names}

    async def servers(self) -> list[int]:
        return [one.pid for one in await app.inspector().servers()]

    # The gateway and its clients.

    async def gateway(self) -> str:
        gateway = app.gateway(ws="127.0.0.1:0", quic="off", http="off", drain=0.2)
        await self._open.enter_async_context(gateway)
        return f"ws://{gateway.ws_address}"

    async def push(self, user: str, payloads: list[Any]) -> None:
        for payload in payloads:
            await app.push(payload, user=user, type="news")

    async def attach(self, url: str, token: str = "ada", resume: str | None = None) -> None:
        self._peer = await connect(url, token=token, resume=resume)

    async def ask(self, action: str, body: Any) -> Any:
        return await self._peer.request(action, body)

    async def read(self, last: int) -> list[Any]:
        """What comes, up to the item of this number; gaps and discontinuities by the names of their classes."""
        items: list[Any] = []
        async for item in self._peer:
            items.append([item.seq, item.type, item.data] if hasattr(item, "seq") else type(item).__name__)
            if getattr(item, "seq", 0) == last:
                break
        return items

    async def detach(self) -> str:
        """Leave the session as it is; what another side needs to go on with it."""
        await self._peer.detach()
        return str(self._peer.export().to_json())

    async def end(self) -> None:
        if self._flow is not None:
            self._flow.cancel()
        await self._open.aclose()
        await app.close()


async def serve() -> None:
    side, loop = Side(), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        call = json.loads(line)
        try:
            async with asyncio.timeout(60):
                answer = {"value": await getattr(side, call.pop("do"))(**call)}
        except Exception as exc:
            answer = {"error": type(exc).__name__, "text": str(exc)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await side.end()


def main(role: str, url: str, settings: dict[str, Any]) -> int:
    configure("info", "text")  # on stderr
    app.use(url)
    if role == "worker":
        return app.worker(**settings).run()
    if role == "scheduler":
        app.schedule("@every 1s", app.call("job", {"result": False}, queue="ticks"))
        return app.scheduler(**settings).run()
    asyncio.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
