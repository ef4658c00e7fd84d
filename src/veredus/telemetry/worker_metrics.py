"""Serves metrics and health of a worker: `app.worker(companions=[Metrics(9090)])`."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from veredus.errors import ConfigError, StoreError, VeredusError
from veredus.events import Bus
from veredus.inspector.inspector import Inspector
from veredus.telemetry.probe_server import TEXT, Page, ProbeServer, host_and_port, verdict
from veredus.worker.health import not_ready, problems
from veredus.worker.worker import Worker

FOLDER = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """Serves /metrics, /healthz and /readyz. With `queues`, a scrape also reads the queues of the worker.

    Create it before the worker's processes start: with `shared`, each process answers for all of them.
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

    def __call__(self, worker: Worker) -> AbstractAsyncContextManager[ProbeServer]:
        return self._open(worker)

    def listen_to_supervisor(self, bus: Bus) -> None:
        """Count events of the supervisor, such as replaced processes, together with those of the workers."""
        from prometheus_client import CollectorRegistry

        from veredus.telemetry.metrics import WorkerMetrics

        if self._shared:
            bus.subscribe(WorkerMetrics(CollectorRegistry(), shared=True))

    @asynccontextmanager
    async def _open(self, worker: Worker) -> AsyncIterator[ProbeServer]:
        from prometheus_client import CollectorRegistry, Gauge

        from veredus.telemetry.metrics import WorkerMetrics

        own = CollectorRegistry()
        worker.bus.subscribe(WorkerMetrics(own, shared=self._shared))
        live: dict[str, Any] = {"multiprocess_mode": "livesum"} if self._shared else {}
        slots = Gauge("veredus_worker_slots", "Handlers that can run at once.", registry=own, **live)
        slots.set(worker.config.concurrency)
        inspector = Inspector(worker.app.open_redis(f"veredus-metrics-{worker.worker_id[:8]}"))
        pages: dict[str, Page] = {
            "/metrics": lambda: self._metrics(worker, own, inspector),
            "/healthz": lambda: _health(worker, ready=False),
            "/readyz": lambda: _health(worker, ready=True),
        }
        async with ProbeServer(self.port, pages, host=self._host, shared=self._shared) as endpoint:
            self.port = endpoint.port
            yield endpoint
        await inspector.close()

    async def _metrics(self, worker: Worker, own: Any, inspector: Inspector) -> tuple[int, str, bytes]:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        from veredus.telemetry.queue_metrics import read_queues

        source = CollectorRegistry()
        if self._shared:
            _remove_dead_gauges()
            MultiProcessCollector(source)  # type: ignore[no-untyped-call]
            text = bytes(generate_latest(source))
        else:
            ProcessCollector(registry=source)
            text = bytes(generate_latest(own) + generate_latest(source))
        if self._queues:
            with contextlib.suppress(StoreError):  # Redis is unreachable: still serve the figures of this process
                text += await read_queues(inspector, only=worker.queues)
        return 200, TEXT, text


def metrics_for(listen: str, settings: Mapping[str, Any]) -> Metrics:
    """The companion for `--metrics [HOST:]PORT`. With a supervisor there are several processes, at least one after
    another, so the figures are shared."""
    host, port = host_and_port(listen)
    several = settings.get("processes", 1) > 1 or settings.get("max_tasks") or settings.get("max_memory")
    return Metrics(port, host=host, shared=bool(several))


async def _health(worker: Worker, *, ready: bool) -> tuple[int, str, bytes]:
    signs = worker.signs
    found = not_ready(signs) if ready else problems(signs)
    restarts = dict(signs.restarts)
    return verdict(found, worker=worker.worker_id, busy=signs.busy, overrun=signs.overrun, restarts=restarts)


def _share_figures() -> None:
    """Create the folder where processes share their figures. prometheus_client reads the variable when it is
    imported."""
    if os.environ.get(FOLDER):
        return
    if "prometheus_client" in sys.modules:
        raise ConfigError(FOLDER, None, "set before prometheus_client is imported, for several processes")
    folder = os.environ[FOLDER] = tempfile.mkdtemp(prefix="veredus-metrics-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def _remove_dead_gauges() -> None:
    """Remove the gauges of processes that have died. Their counters stay."""
    from prometheus_client.multiprocess import mark_process_dead

    for path in Path(os.environ[FOLDER]).glob("gauge_live*.db"):
        pid = path.stem.rpartition("_")[2]
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]
        except (ValueError, PermissionError):
            continue
