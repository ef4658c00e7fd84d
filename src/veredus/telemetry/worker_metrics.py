"""Metrics and health of a worker, served beside it: a companion for `app.worker(companions=[Metrics(9090)])`."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from veredus.errors import ConfigError, StoreError, VeredusError
from veredus.telemetry.endpoint import TEXT, Endpoint, Page, verdict
from veredus.worker.health import not_ready, problems
from veredus.worker.worker import Worker

FOLDER = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """Serves /metrics, /healthz and /readyz. With `queues`, a scrape also looks at the queues that the worker serves.

    Make it before the worker's processes: with `shared`, each of them answers for all.
    """

    def __init__(self, port: int, *, host: str = "127.0.0.1", queues: bool = True, shared: bool = False) -> None:
        self.port = port
        self._host = host
        self._queues = queues
        self._shared = shared
        if shared:
            _share_figures()
        try:
            import prometheus_client
        except ModuleNotFoundError as exc:
            raise VeredusError(f"{exc.name} is missing: pip install 'veredus[prometheus]'") from None
        del prometheus_client

    def __call__(self, worker: Worker) -> AbstractAsyncContextManager[Endpoint]:
        return self._open(worker)

    @asynccontextmanager
    async def _open(self, worker: Worker) -> AsyncIterator[Endpoint]:
        from prometheus_client import CollectorRegistry, Gauge

        from veredus.telemetry.metrics import WorkerMetrics

        own = CollectorRegistry()
        worker.bus.subscribe(WorkerMetrics(own, shared=self._shared))
        live = {"multiprocess_mode": "livesum"} if self._shared else {}
        hands = Gauge("veredus_worker_hands", "Handlers that can run at once.", registry=own, **live)  # type: ignore[arg-type]
        hands.set(worker.config.concurrency)
        pages: dict[str, Page] = {
            "/metrics": lambda: self._metrics(worker, own),
            "/healthz": lambda: _health(worker, ready=False),
            "/readyz": lambda: _health(worker, ready=True),
        }
        async with Endpoint(self.port, pages, host=self._host, shared=self._shared) as endpoint:
            self.port = endpoint.port
            yield endpoint
        if self._shared:
            _leave()

    async def _metrics(self, worker: Worker, own: object) -> tuple[int, str, bytes]:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        from veredus.telemetry.queue_metrics import read_queues

        source = CollectorRegistry()
        if self._shared:
            MultiProcessCollector(source)  # type: ignore[no-untyped-call]
        else:
            ProcessCollector(registry=source)
        text = generate_latest(source) if self._shared else generate_latest(own) + generate_latest(source)  # type: ignore[arg-type]
        if self._queues:
            try:
                text += await read_queues(worker.app.inspector(), only=worker.queues)
            except StoreError:
                pass  # Redis is away: what is counted here can still be told
        return 200, TEXT, text


async def _health(worker: Worker, *, ready: bool) -> tuple[int, str, bytes]:
    signs = worker.signs
    return verdict(not_ready(signs) if ready else problems(signs), worker=worker.worker_id, busy=signs.busy)


def _share_figures() -> None:
    """Where the processes of one supervisor put their figures; the library reads the variable when it is imported."""
    if os.environ.get(FOLDER):
        return
    if "prometheus_client" in sys.modules:
        raise ConfigError(FOLDER, None, "to be set before prometheus_client is imported, for several processes")
    folder = os.environ[FOLDER] = tempfile.mkdtemp(prefix="veredus-metrics-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def _leave() -> None:
    from prometheus_client.multiprocess import mark_process_dead

    with contextlib.suppress(OSError):
        mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]
