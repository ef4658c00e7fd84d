"""The gateway's nodes as they announce themselves in Redis, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from veredus.store.nodes import NodeInfo, Nodes

MAX_NODES = 1_000
GAUGES = {
    "connections": "Connections of clients.",
    "sessions": "Sessions attached.",
    "open_requests": "Requests without an answer yet.",
    "requests_per_second": "Requests that came in lately.",
}
COUNTERS = {
    "delivery": ("veredus_gateway_delivery", "What became of messages.", "event"),
    "requests": ("veredus_gateway_requests", "What became of requests.", "event"),
    "refused": ("veredus_gateway_refused", "What was refused, and why.", "reason"),
    "restarts": ("veredus_gateway_restarts", "Parts of the node that ended and were started again.", "part"),
}


class GatewayMetrics(Collector):
    """The figures of one look, which was taken before."""

    def __init__(self, nodes: Mapping[str, NodeInfo]) -> None:
        self._nodes = dict(sorted(nodes.items())[:MAX_NODES])

    def collect(self) -> Iterator[Metric]:
        if not self._nodes:
            return
        yield self._gauge("beat_age_seconds", "Since the node last said that it lives.", lambda node: node.age)
        yield self._gauge("draining", "1 if clients are moved elsewhere.", lambda node: node.info.get("draining"))
        for name, text in GAUGES.items():
            yield self._gauge(name, text, lambda node, name=name: node.info.get(name))
        for name, (metric, text, label) in COUNTERS.items():
            family = CounterMetricFamily(metric, text, labels=("node", label))
            for node, found in self._nodes.items():
                for key, value in (found.info.get(name) or {}).items():
                    family.add_metric((node, str(key)), _number(value))
            yield family

    def _gauge(self, name: str, text: str, read: Any) -> Metric:
        family = GaugeMetricFamily(f"veredus_gateway_{name}", text, labels=("node",))
        for node, found in self._nodes.items():
            family.add_metric((node,), _number(read(found)))
        return family


async def read_gateway(nodes: Nodes) -> bytes:
    """One look at the nodes, as text for Prometheus; empty without a gateway."""
    registry = CollectorRegistry()
    registry.register(GatewayMetrics(await nodes.nodes()))
    return bytes(generate_latest(registry))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
