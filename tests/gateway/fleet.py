"""Gateway and worker processes of a test, started by the command line, killed at will."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.servers import RealServer, free_port
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
QUICK = ("--heartbeat", "1", "--pong", "1", "--drain", "0.5", "--log-level", "info")


class Process:
    """One command, in a process group of its own."""

    def __init__(
        self, arguments: list[str], url: str, log: Path, *, program: tuple[str, ...] = ("-m", "veredus")
    ) -> None:
        self._command = [sys.executable, *program, *arguments]
        self._environment = {**os.environ, "VEREDUS_REDIS_URL": url, "PYTHONPATH": str(ROOT)}
        self.log = log
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9 for it and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def ended(self, seconds: float = 20.0) -> int:
        return await asyncio.to_thread(self._process.wait, seconds)


class Site:
    """Two gateways (each with its own ports) and workers, all of `tests.gateway.site`."""

    def __init__(
        self,
        server: RealServer,
        folder: Path,
        *,
        gateways: int = 2,
        processes: int = 1,
        urls: Sequence[str] = (),
        settings: Sequence[str] = (),
    ) -> None:
        """`urls`: where each gateway finds the server, if not directly; `settings`: more of their command line."""
        self.server = server
        self._urls = dict(enumerate(urls))
        self._settings = settings
        self._folder = folder
        self.processes: list[Process] = []
        self.ports: list[tuple[int, int]] = []
        self.gateways: list[Process] = []
        for number in range(gateways):
            ws, quic = free_port(), free_port()
            self.ports.append((ws, quic))
            self.gateways.append(self.gateway(number, ws, quic, "--processes", str(processes)))

    def gateway(self, number: int, ws: int, quic: int, *more: str) -> Process:
        where = ("--ws", f"127.0.0.1:{ws}", "--quic", f"127.0.0.1:{quic}", "--http", "off")
        command = ("gateway", "tests.gateway.site:app", *where, *QUICK, *self._settings, *more)
        return self._run(f"gateway{number}", *command, url=self._urls.get(number, self.server.url))

    def worker(self, number: int = 0, *, lease: str = "1.5") -> Process:
        command = ("worker", "tests.gateway.site:app", "--lease", lease, "--shutdown-timeout", "2")
        return self._run(f"worker{number}", *command, url=self.server.url)

    def _run(self, name: str, *arguments: str, url: str) -> Process:
        process = Process(list(arguments), url, self._folder / f"{name}.log")
        self.processes.append(process)
        return process

    def urls(self, scheme: str) -> list[str]:
        return [f"{scheme}://127.0.0.1:{ports[scheme == 'quic']}" for ports in self.ports]

    async def ready(self) -> None:
        """Until every gateway takes connections."""

        async def takes_connections(port: int) -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        try:
            for ws, _ in self.ports:
                await until(lambda ws=ws: takes_connections(ws), what="a listening gateway")
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.logs()}") from None

    def logs(self, most: int = 3000, name: str = "") -> str:
        """The end of what the processes of this name wrote."""
        wanted = [one for one in self.processes if one.log.name.startswith(name)]
        parts = [f"--- {one.log.name}\n{one.log.read_text()[-most:]}" for one in wanted]
        return "\n".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self.processes:
            process.kill()
