"""The table of bounds in docs/concepts/promises.md says what the source does."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from pathlib import Path

from veredus import App
from veredus.client.call import DEFAULT_MAX_PAYLOAD
from veredus.model import absences, archive, grouping, names, nesting, options
from veredus.scheduler import catchup
from veredus.store.connection import batching, replication
from veredus.store.tasks import intake, leases, order_keys
from veredus.worker.config import WorkerConfig
from veredus.worker.roles import recoverer

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "promises.md").read_text(encoding="utf-8")
WORKER = WorkerConfig.make()


def _default(name: str) -> float:
    return float(inspect.signature(App).parameters[name].default)


def _in_lua(file: str, pattern: str) -> int:
    (found,) = re.findall(pattern, (ROOT / "src" / "veredus" / "lua" / file).read_text(encoding="utf-8"))
    return int(found)


def _seconds(value: float) -> str:
    return f"{value:,g} s" if value < 1000 else f"{value:,.0f} s"


WAIT_S = {kind: _seconds(ms / 1000) for kind, ms in replication.WAIT_MS.items()}
LOOKED_FOR = _in_lua("presence/look.lua", r"'LIMIT', 0, (\d+)")
BOUNDS = {
    "producers try again while Redis is away": _seconds(_default("patience")),
    "a call that is sent again is recognised for": _seconds(2 * _default("patience") + intake.RECORD_MARGIN),
    "an answer of Redis is waited for": _seconds(_default("timeout")),
    "a confirmation by replicas is waited for": f"`patience`, at least {WAIT_S['replica']}",
    "a confirmation by the disk is waited for": f"`patience`, at least {WAIT_S['fsync']}",
    "lease of a task": _seconds(WORKER.lease),
    "heartbeats renew it every": _seconds(WORKER.beat),
    "a killed worker is found dead by its closed connections after": (
        f"{absences.PATIENCE:g} to {absences.PATIENCE + 2 * absences.INTERVAL:g} s"
    ),
    "workers that are looked for so": f"{LOOKED_FOR:,}",
    "expired leases are looked for every": _seconds(WORKER.sweep),
    "a recoverer has a task it found for": _seconds(recoverer.CLAIM_MS / 1000),
    "a lease that Go wrote is recovered after it ended by": _seconds(leases.FOREIGN_SLACK_MS / 1000),
    "a jump of the server's clock, or a standstill, after which nobody is judged for one lease": _seconds(
        recoverer.STANDSTILL
    ),
    "crashes after which a task is archived": str(WORKER.max_crashes),
    "a handler may end after its deadline by": _seconds(WORKER.deadline_grace),
    "running handlers may go on after a stop for": _seconds(WORKER.shutdown_timeout),
    "a delayed task of a Go client is noticed within": _seconds(WORKER.forward_interval),
    "a result is kept": _seconds(_default("result_ttl")),
    "a kept unique lock outlasts its task's next step by": _seconds(
        _in_lua("include/ownership.lua", r"tonumber\(ms\) / 1000\) \+ (\d+)")
    ),
    "tasks in the archive of a queue": f"{archive.DEFAULT_SIZE:,}",
    "days in the archive": str(archive.DEFAULT_DAYS),
    "missed ticks that are caught up": (
        f"those of the last {_seconds(catchup.WINDOW)}, and the newest {catchup.COUNT} before"
    ),
    "characters in the name of a queue": str(names.MAX_QUEUE),
    "characters in a type, an id, a group, an order key": str(names.MAX_NAME),
    "bytes in a payload": f"{DEFAULT_MAX_PAYLOAD:,}",
    "depth of nested JSON": str(nesting.MAX_DEPTH),
    "a delay, timeout or retention": _seconds(options.LONGEST),
    "the last instant a task can be due": f"{options.LATEST - timedelta(days=1):%Y-%m-%d}",
    "tasks that one script stores": f"{batching.MAX_ITEMS}, of {batching.MAX_BYTES:,} bytes in all",
    "tasks that one dequeue passes over": (
        f"{_in_lua('task/dequeue.lua', 'local SCAN = ([0-9]+)'):,}, "
        f"within the {_in_lua('task/dequeue.lua', 'local DEEPEST = ([0-9]+)'):,} that are next"
    ),
    "order keys that one sweep checks": str(order_keys.LANES),
    "members that one aggregation takes": f"{grouping.MAX_SIZE:,}",
}


def test_every_bound_is_that_of_the_source() -> None:
    table = PAGE.partition("## Bounds")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([^|`]+?) \| ([^|]+?) \|", table, re.MULTILINE))
    rows.pop("bound")
    assert rows == BOUNDS
