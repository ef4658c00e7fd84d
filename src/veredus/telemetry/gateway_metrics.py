"""Prometheus metrics of gateway nodes, from the figures that the nodes write to Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from veredus.store.sessions.gateway_nodes import GatewayNodeInfo, GatewayNodes

MAX_NODES = 1_000
GAUGES = {
    "connections": "Client connections.",
    "sessions": "Attached sessions.",
    "open_requests": "Requests without a response yet.",
    "requests_per_second": "Recent requests per second.",
}
COUNTERS = {
    "delivery": ("veredus_gateway_delivery", "Messages by outcome.", "event"),
    "requests": ("veredus_gateway_requests", "Requests by outcome.", "event"),
    "refused": ("veredus_gateway_refused", "Refused connections and requests by reason.", "reason"),
    "restarts": ("veredus_gateway_restarts", "Restarts of parts of the node.", "part"),
}


class GatewayMetrics(Collector):
    """Figures that were read before: a collector cannot wait for Redis."""

    def __init__(self, nodes: Mapping[str, GatewayNodeInfo]) -> None:
        self._nodes = dict(sorted(nodes.items())[:MAX_NODES])

    def collect(self) -> Iterator[Metric]:
        if not self._nodes:
            return
        yield self._gauge("beat_age_seconds", "Seconds since the last heartbeat of the node.", lambda node: node.age)
        yield self._gauge(
            "draining", "1 if the node moves its clients to other nodes.", lambda node: node.info.get("draining")
        )
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


async def read_gateway(nodes: GatewayNodes) -> bytes:
    """Read the nodes and return the text format of Prometheus; empty without a gateway."""
    registry = CollectorRegistry()
    registry.register(GatewayMetrics(await nodes.nodes()))
    return bytes(generate_latest(registry))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
