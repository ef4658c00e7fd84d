"""Looking at a replica: all that only reads is answered there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import httpx
import pytest

from tests.foreign.readers import DASHBOARD, INSPECTOR, TOKEN
from tests.support.servers import RealServer, free_port
from tests.support.waiting import until
from veredus import App, VeredusError
from veredus.dashboard import asgi
from veredus.errors import NotReady

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("product", ["valkey", "redis6"])
async def test_everything_that_only_reads_works_on_a_replica(
    new_server: Callable[..., RealServer], product: str
) -> None:
    master = new_server("--repl-diskless-sync-delay", "0", product=product, port=free_port())
    replica = new_server(product=product, port=free_port())
    replica.client().execute_command("REPLICAOF", "127.0.0.1", master.port)
    async with App(master.url) as app, App(replica.url) as reader:

        @app.task(name="note")
        async def note() -> None: ...

        app.schedule("@every 1h", note.call())
        async with app.worker(), app.scheduler():
            await note.using(delay=100, task_id="bad").enqueue()
            await until(lambda: replica.client().exists("asynq:servers", "asynq:{default}:t:bad") == 2)
            for name, ask in INSPECTOR.items():
                with contextlib.suppress(VeredusError):
                    try:
                        await ask(reader.inspector(), "default")
                    except NotReady as exc:
                        raise AssertionError(f"inspector.{name}: {exc}") from exc
            assert len(await reader.inspector().servers()) == 1
            dashboard = asgi(reader, token=TOKEN)
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(dashboard),
                base_url="http://dash.test",
                headers={"authorization": f"Bearer {TOKEN}"},
            ) as client:
                for name, queries in DASHBOARD.items():
                    for query in queries:
                        answer = await client.get(f"/api/{name}?{query.format(queue='default')}")
                        assert answer.status_code < 500, f"{name}?{query}: {answer.text}"
            await dashboard.close()
            with pytest.raises(NotReady, match="READONLY"):
                await reader.inspector().pause("default")
