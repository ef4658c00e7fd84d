"""The reference of metrics: every family that the source declares, with its labels and help."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_KINDS = {
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "Histogram": "histogram",
    "HistogramMetricFamily": "histogram",
    "Summary": "summary",
    "SummaryMetricFamily": "summary",
}


class Metric(NamedTuple):
    name: str
    kind: str
    labels: str
    text: str


def pages() -> dict[str, str]:
    rows = "\n".join(f"| `{one.name}` | {one.kind} | {one.labels} | {one.text} |" for one in metrics())
    parts = [
        "# Metrics",
        "What `--metrics PORT` serves to Prometheus. Names that Asynq has too mean the same.",
        f"| name | kind | labels | meaning |\n|---|---|---|---|\n{rows}",
    ]
    return {"metrics.md": "\n\n".join(parts) + "\n"} if rows else {}


def metrics() -> list[Metric]:
    found: dict[str, Metric] = {}
    for path in sorted((ROOT / "src/veredus").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "prometheus" not in source and "Metric" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and (one := _metric(node)) is not None:
                found.setdefault(one.name, one)
    return sorted(found.values())


def _metric(node: ast.Call) -> Metric | None:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    texts = [one.value for one in node.args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if called not in _KINDS or len(texts) != 2:
        return None
    given = [*node.args[2:3], *(one.value for one in node.keywords if one.arg in ("labelnames", "labels"))]
    labels = [
        str(one.value)
        for holder in given
        if isinstance(holder, ast.List | ast.Tuple)
        for one in holder.elts
        if isinstance(one, ast.Constant)
    ]
    return Metric(texts[0], _KINDS[called], ", ".join(f"`{label}`" for label in labels), texts[1])
