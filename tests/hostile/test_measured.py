"""One hostile client at full speed, one kind at a time: another client's latency and how late the gateway's loop is.

`make chaos` runs every kind for 20 s, each between two control runs with a process that is as busy and harmless, and
prints a table. In `make test` a few kinds run for a moment, which is no measurement: only the answers are checked, and
how long the gateway worked without a pause."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.gateway.fleet import ROOT, Process
from tests.gateway.support import JsonClient
from tests.hostile.attack import ATTACKS
from tests.support.servers import RealServer, free_port
from tests.support.sizes import FULL, size
from tests.support.waiting import until

SECONDS = float(os.environ.get("VEREDUS_TEST_HOSTILE") or size(0.5, 20.0))
"""Of each kind; a shorter run of all of them: VEREDUS_TEST_FULL=1 VEREDUS_TEST_HOSTILE=2."""
RATE = 100
WORK = size(100.0, 30.0)
"""Milliseconds that the gateway's thread may work between two looks at it. Its own clock counts, so that this
holds on a busy machine too, where others make the loop late. In a short run one turn is p99.9: a wider bound."""
CONTROL = "control"
LATE = 50.0
"""Milliseconds of p99.9. Time for which other work had all processors does not count."""
FEW = ("ws unknown frames before login", "quic acks after login")
KINDS = tuple(kind for kind in ATTACKS if kind != CONTROL) if FULL else FEW


class Figures(NamedTuple):
    kind: str
    asked: int
    p50: float
    p99: float
    late_p99: float
    late_p999: float
    late_most: float
    work_p99: float
    work_p999: float
    work_most: float


class Victim:
    """A client that asks again and again, and takes the time."""

    def __init__(self, client: JsonClient) -> None:
        self._client = client
        self._rid = 0

    async def ask(self, action: str, body: dict[str, str] | None = None) -> object:
        self._rid += 1
        await self._client.request(self._rid, action, body or {})
        answer = await self._client.frame("msg", 60.0, rid=self._rid)
        assert answer.get("code", 0) == 0, answer
        await self._client.ack(rid_floor=self._rid)
        return answer["body"]

    async def measure(self, kind: str, seconds: float) -> Figures:
        await self.ask("lateness")
        found = []
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            at = time.perf_counter()
            assert await self.ask("echo", {"text": "x"}) == "x"
            found.append((time.perf_counter() - at) * 1000)
            await asyncio.sleep(max(0.0, 1 / RATE - (time.perf_counter() - at)))
        found.sort()
        late = await self.ask("lateness")
        assert isinstance(late, list)
        return Figures(kind, len(found), found[len(found) // 2], found[len(found) * 99 // 100], *late[0], *late[1])


def _table(rows: list[Figures]) -> str:
    """Of the loop: how late it was when it had a processor, and how long it worked between two looks at it."""
    names = ("asked", "p50", "p99", "late p99", "p99.9", "most", "work p99", "p99.9", "most")
    lines = [" " * 42 + "".join(f"{name:>9}" for name in names) + "   (ms)"]
    lines += [f"{row.kind:42}{row.asked:9}" + "".join(f"{value:9.1f}" for value in row[2:]) for row in rows]
    return "\n".join(lines)


async def _attacked(victim: Victim, kind: str, ports: list[str], seconds: float) -> Figures:
    attack = subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.attack", kind, *ports, str(seconds + 3)],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await asyncio.sleep(size(0.0, 1.5))  # it has begun
        found = await victim.measure(kind, seconds)
    finally:
        attack.kill()
        attack.wait()
    if FULL:
        print(_table([found]).splitlines()[1], flush=True)
    return found


class Row(NamedTuple):
    found: Figures
    beside: tuple[Figures, ...]
    """The control runs directly before and after it."""

    def is_worse_than(self, quiet: Figures) -> bool:
        """The latency is compared with the quiet one or, on a machine that is never quiet, with the control's."""
        p99 = max(5 * quiet.p99, 25.0, *(2 * control.p99 for control in self.beside))
        return self.found.p99 > p99 or self.found.late_p999 > LATE


@pytest.mark.timeout(3000 if FULL else 120)
async def test_one_hostile_client_of_each_kind_harms_nobody(valkey_server: RealServer, tmp_path: Path) -> None:
    ws, quic, http = free_port(), free_port(), free_port()
    where = ["--ws", f"127.0.0.1:{ws}", "--quic", f"127.0.0.1:{quic}", "--http", f"127.0.0.1:{http}"]
    limits = ["--request-rate", "200", "--address-handshakes", "50", "--address-sessions", "50"]
    command = ["gateway", "tests.hostile.site:app", *where, *limits, "--drain", "0.1"]
    process = Process(command, valkey_server.url, tmp_path / "gateway.log")
    ports = [str(port) for port in (ws, quic, http)]
    rows: list[Row] = []
    try:

        async def connected() -> JsonClient | None:
            try:
                return await JsonClient.open(f"ws://127.0.0.1:{ws}/", "victim")
            except OSError:
                return None

        victim = Victim(await until(connected, what="a listening gateway"))
        await victim.measure("warm-up", 0.3)
        quiet = await victim.measure("quiet", SECONDS)
        control = await _attacked(victim, CONTROL, ports, SECONDS / 4)
        for kind in KINDS:
            before, found = control, await _attacked(victim, kind, ports, SECONDS)
            control = await _attacked(victim, CONTROL, ports, SECONDS / 4) if FULL else before
            rows.append(Row(found, (before, control)))
    finally:
        process.kill()
    print("\n" + _table([quiet, *(row.found for row in rows)]))
    assert [row.found.kind for row in rows] == list(KINDS)
    hard = [row.found for row in rows if row.found.work_p999 > WORK]
    assert not hard, "\n" + _table([quiet, *hard])
    if FULL:
        bad = [figures for row in rows if row.is_worse_than(quiet) for figures in (row.found, *row.beside)]
        assert not bad, "\n" + _table([quiet, *bad])
