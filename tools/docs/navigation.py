"""The site's navigation, by what somebody wants to do; pages that nobody placed stand at the end of the guides."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

SECTIONS: dict[str, list[tuple[str, str]]] = {
    "Start": [
        ("In a minute", "index.md"),
        ("Tutorial", "tutorial.md"),
        ("Project layout", "project-layout.md"),
        ("Examples", "examples/index.md"),
        ("Comparison", "comparison.md"),
    ],
    "Do": [
        ("Choose how a task runs", "options.md"),
        ("Choose where handlers run", "handlers.md"),
        ("Choose how many run at once", "slots.md"),
        ("Share connections, wrap handlers", "dependencies.md"),
        ("Delay and retry", "delayed-and-retried.md"),
        ("See failures", "failures.md"),
        ("Run something only once", "unique.md"),
        ("Run on a schedule", "scheduler.md"),
        ("Turn many tasks into one", "groups.md"),
        ("Keep order, set limits", "order-and-limits.md"),
        ("Wait for results, follow, cancel", "results.md"),
        ("Workflows in plain Python", "workflows.md"),
        ("Stop without losing anything", "graceful-stop.md"),
        ("Push to browsers and apps", "gateway.md"),
        ("Connect a client", "peers.md"),
        ("Use it in FastAPI, Django, ...", "integrations.md"),
        ("Test your tasks", "testing.md"),
        ("Inspect and repair", "inspector.md"),
        ("Watch it in a browser", "dashboard.md"),
        ("Metrics, traces, logs", "telemetry.md"),
    ],
    "Understand": [
        ("The life of a task", "concepts/life-cycle.md"),
        ("Leases and crashes", "concepts/leases.md"),
        ("Order", "concepts/ordering.md"),
        ("What is promised", "concepts/promises.md"),
        ("The log of a session", "gateway-log.md"),
        ("Architecture", "project/architecture.md"),
    ],
    "Operate": [
        ("Deploy", "deployment.md"),
        ("Runbook", "operations.md"),
        ("Servers, Sentinel, Cluster, permissions", "servers.md"),
        ("Upgrade", "upgrades.md"),
        ("Speed", "performance.md"),
    ],
    "With Go": [
        ("Go and Python together", "go-and-python.md"),
        ("Where Veredus differs from Asynq", "asynq-differences.md"),
    ],
    "Migrate": [
        ("From Celery", "migrating/celery.md"),
        ("From Celery in an hour", "migrating/celery-in-an-hour.md"),
        ("From RQ", "migrating/rq.md"),
        ("From arq", "migrating/arq.md"),
        ("From Asynq", "migrating/asynq.md"),
    ],
    "Reference": [
        ("API", "reference/api.md"),
        ("Command line", "reference/cli.md"),
        ("Settings", "reference/config.md"),
        ("Errors", "reference/errors.md"),
        ("Metrics", "reference/metrics.md"),
        ("Keys and channels", "reference/keys.md"),
        ("Frames", "reference/frames.md"),
        ("Protocol of the gateway", "gateway-protocol.md"),
        ("Scripts", "reference/scripts/index.md"),
    ],
    "Background": [
        ("Defects of Asynq that Veredus fixes", "fixes.md"),
        ("Defects of an earlier gateway", "gateway-defects.md"),
        ("Terms of the original descriptions", "names.md"),
    ],
    "Project": [
        ("Changes", "project/changelog.md"),
        ("Security and support", "project/security.md"),
        ("Contributing", "project/contributing.md"),
        ("Rules for coding agents", "project/agents.md"),
    ],
}
# Reached from a page of their own kind.
UNLISTED = ("reference/scripts/", "files/", "examples/")


def navigation(pages: Collection[str]) -> list[dict[str, Any]]:
    """What MkDocs takes as `nav`, with the pages that exist."""
    placed = {path for entries in SECTIONS.values() for _, path in entries}
    rest = sorted(path for path in pages if path not in placed and not path.startswith(UNLISTED))
    made = []
    for section, entries in SECTIONS.items():
        shown: list[Any] = [{title: path} for title, path in entries if path in pages]
        made.append({section: [*shown, *rest] if section == "Do" else shown})
    return made
