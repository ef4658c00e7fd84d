"""The alerts for Prometheus ask only for metrics, labels and values that exist."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import yaml
from tools.docs.metric_pages import Metric, metrics

from tests.deploy.files import DEPLOY
from veredus.gateway.maintenance import BEAT
from veredus.model.delivery import NODE_TIMEOUT
from veredus.model.lifecycle import State

FILE = DEPLOY / "prometheus/alerts.yml"
GROUPS = yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"]
RULES = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
VALUES = {"state": set(State)}
"""What a label can be, where an alert asks for one value of it."""


def served() -> dict[str, Metric]:
    """By the name that a query uses."""
    found = {one.name: one for one in metrics()}
    for one in list(found.values()):
        if one.kind == "histogram":
            del found[one.name]
            found |= {f"{one.name}_{part}": one for part in ("bucket", "count", "sum")}
    return found


def labels(metric: Metric) -> set[str]:
    return set(re.findall(r"\w+", metric.labels)) | ({"le"} if metric.kind == "histogram" else set())


def test_there_is_an_alert_for_everything_that_the_runbook_watches() -> None:
    assert len(RULES) == sum(len(group["rules"]) for group in GROUPS), "two alerts have one name"
    asked = " ".join(rule["expr"] for rule in RULES.values())
    for name in ("queue_latency", "archived", "tasks_failed", "tasks_recovered", "leases_lost", "role_restarts"):
        assert name in asked


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_asks_for_what_is_served(alert: str) -> None:
    expression = RULES[alert]["expr"]
    asked = set(re.findall(r"\b(?:veredus|asynq)_\w+", expression))
    assert asked
    assert asked <= set(served())
    together = set.intersection(*(labels(served()[name]) for name in asked))
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert set(re.split(r",\s*", grouped)) <= together, f"by ({grouped})"
    for name, chosen in re.findall(r"\b((?:veredus|asynq)_\w+)\{([^}]*)\}", expression):
        for label, value in re.findall(r'(\w+)="([^"]*)"', chosen):
            assert label in labels(served()[name])
            assert value in VALUES[label]


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_treats_a_metric_as_what_it_is(alert: str) -> None:
    """`rate` and `increase` are for what only grows, `delta` for what also falls. Names do not tell: Asynq has gauges
    that end in `_total`."""
    expression = RULES[alert]["expr"]
    for function, name in re.findall(r"\b(rate|increase|delta)\(((?:veredus|asynq)_\w+)", expression):
        assert (served()[name].kind == "gauge") == (function == "delta"), f"{function}({name})"
    grows = {name for name, metric in served().items() if metric.kind != "gauge"}
    for name in grows & set(re.findall(r"\b(?:veredus|asynq)_\w+", expression)):
        assert re.search(rf"\b(rate|increase)\({name}\[\d+m\]\)", expression), name


@pytest.mark.parametrize("alert", RULES)
def test_the_text_of_an_alert_uses_labels_that_its_result_has(alert: str) -> None:
    rule = RULES[alert]
    kept = {label for grouped in re.findall(r"\bby \(([^)]*)\)", rule["expr"]) for label in re.split(r",\s*", grouped)}
    texts = f"{rule['annotations']['summary']} {rule['annotations']['description']}"
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= kept - {"le"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_a_silent_gateway_is_noticed_before_others_forget_it() -> None:
    (limit,) = re.findall(r"> (\d+)\)", RULES["VeredusGatewaySilent"]["expr"])
    assert 2 * BEAT < float(limit) < NODE_TIMEOUT


def test_prometheus_takes_the_file() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed here: the alerts were NOT TESTED by Prometheus")
    ended = subprocess.run([promtool, "check", "rules", str(FILE)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
