"""The reference of metrics: every family that is served, with its kind, labels and help."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
TELEMETRY = ROOT / "src/veredus/telemetry"


class Metric(NamedTuple):
    name: str
    kind: str
    labels: str
    text: str


def pages() -> dict[str, str]:
    rows = "\n".join(f"| `{one.name}` | {one.kind} | {one.labels} | {one.text} |" for one in metrics())
    parts = [
        "# Metrics",
        "What `veredus worker --metrics` and `veredus metrics` serve to Prometheus; names that Asynq has mean the same."
        " How to use them: [telemetry](../telemetry.md).",
        f"| name | kind | labels | meaning |\n|---|---|---|---|\n{rows}",
    ]
    return {"metrics.md": "\n\n".join(parts) + "\n"} if rows else {}


def metrics() -> list[Metric]:
    found = {one.name: one for one in _served()}
    for path in sorted(TELEMETRY.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (one := _written_out(node)) is not None:
                found.setdefault(one.name, one)
    return sorted(found.values())


def _served() -> Iterator[Metric]:
    """From the collectors themselves, which need no server to say what they have."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        return
    from veredus.store.sessions.gateway_nodes import GatewayNodeInfo
    from veredus.telemetry.gateway_metrics import GatewayMetrics
    from veredus.telemetry.metrics import WorkerMetrics
    from veredus.telemetry.queue_metrics import QueueMetrics

    registry = CollectorRegistry()
    WorkerMetrics(registry)
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            yield _metric(family, getattr(collector, "_labelnames", ()))
    for families in (QueueMetrics([], memory=True), GatewayMetrics({"node": GatewayNodeInfo(0.0)})):
        for family in families.collect():
            yield _metric(family, getattr(family, "_labelnames", ()))


def _metric(family: Any, labels: Any) -> Metric:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return Metric(name, family.type, ", ".join(f"`{label}`" for label in labels), family.documentation)


def _written_out(node: ast.Call) -> Metric | None:
    """`Gauge("name", "help")` with both as plain text, wherever a worker makes it."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    texts = [one.value for one in node.args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if called != "Gauge" or len(texts) != 2:
        return None
    return Metric(texts[0], "gauge", "", texts[1])
