"""The page about telemetry: its code runs, its metrics exist, and the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import Metric

from veredus.model.info import QueueInfo
from veredus.store.sessions.gateway_nodes import GatewayNodeInfo
from veredus.telemetry.gateway_metrics import GatewayMetrics
from veredus.telemetry.metrics import WorkerMetrics
from veredus.telemetry.queue_metrics import QueueMetrics

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "telemetry.md").read_text()
SUFFIXES = ("_total", "_bucket", "_count", "_sum")


def exported() -> set[str]:
    """The names of everything that is served."""
    registry = CollectorRegistry()
    WorkerMetrics(registry)
    Gauge("veredus_worker_slots", "-", registry=registry)
    numbers = dict.fromkeys(
        [
            "pending",
            "active",
            "scheduled",
            "retry",
            "archived",
            "completed",
            "aggregating",
            "groups",
            "processed",
            "failed",
            "processed_total",
            "failed_total",
            "latency_ns",
            "timestamp_ns",
        ],
        0,
    )
    info = QueueInfo(queue="q", paused=False, **numbers)
    families: list[Metric] = list(registry.collect())
    families += QueueMetrics([info], memory=True).collect()
    families += GatewayMetrics({"n": GatewayNodeInfo(0.0)}).collect()
    names = set()
    for family in families:
        names |= {f"{family.name}_total"} if family.type == "counter" else {family.name}
    return names


def base(name: str) -> str:
    for suffix in ("_bucket", "_count", "_sum"):
        name = name.removesuffix(suffix)
    return name


def test_the_code_on_the_page_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```python"), "a block has no name"
    program = "".join(f"exec(compile({text!r}, {name!r}, 'exec'), {{'__name__': {name!r}}})\n" for name, text in blocks)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_the_table_has_all_metrics_and_no_others() -> None:
    table = [line for line in PAGE.splitlines() if line.startswith("| `")]
    named: set[str] = set()
    for line in table:
        cells = re.findall(r"`([a-z_*]+)`", line.split("|")[1])
        first = cells[0]
        named |= {f"veredus_gateway{cell}" if cell.startswith("_") else cell for cell in cells}
        assert first.startswith(("veredus_", "asynq_", "process_"))
    assert named - {"process_*"} == exported()


def test_the_dashboard_asks_only_for_what_there_is() -> None:
    board = json.loads((DOCS / "grafana" / "veredus.json").read_text())
    asked = set()
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            asked |= set(re.findall(r"\b(?:veredus|asynq)_[a-z_]+", target["expr"]))
            assert target["expr"].count("(") == target["expr"].count(")")
    assert len(asked) > 12
    assert {base(name) for name in asked} <= exported()
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)
