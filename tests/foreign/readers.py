"""Everything that shows people what is in Redis. Each either answers or refuses with an error of ours."""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import pytest

from veredus import App, VeredusError
from veredus.cli.main import main
from veredus.dashboard import asgi
from veredus.inspector.inspector import Inspector
from veredus.model.lifecycle import State

Ask = Callable[[Inspector, str], Awaitable[Any]]
TOKEN = "a-token-for-the-tests"
STATES = tuple(str(state) for state in State)
WRONG_USAGE = 2


async def _every_state(inspector: Inspector, queue: str) -> None:
    for state in STATES:
        found: list[Any] = []
        with contextlib.suppress(VeredusError):
            found = await inspector.tasks(queue, state, group="g" if state == "aggregating" else None, size=200)
        for task in found:
            assert task.as_dict()
            assert [task.next_process_at, task.last_failed_at, task.completed_at, task.deadline_at]
            with contextlib.suppress(VeredusError):
                await inspector.task(queue, task.id)


INSPECTOR: dict[str, Ask] = {
    "queues": lambda inspector, queue: inspector.queues(),
    "queue": lambda inspector, queue: inspector.queue(queue, memory=True),
    "stats": lambda inspector, queue: inspector.stats(memory=True),
    "history": lambda inspector, queue: inspector.history(queue),
    "groups": lambda inspector, queue: inspector.groups(queue),
    "task": lambda inspector, queue: inspector.task(queue, "bad"),
    "durable_run": lambda inspector, queue: inspector.durable_run(queue, "bad"),
    "children": lambda inspector, queue: inspector.children(queue, "bad", "pages"),
    "waiting": lambda inspector, queue: inspector.waiting(queue),
    "attempts": lambda inspector, queue: inspector.attempts(queue, "bad"),
    "waits": lambda inspector, queue: inspector.waits(queue, "bad"),
    "type_stats": lambda inspector, queue: inspector.type_stats(queue=queue),
    "errors": lambda inspector, queue: inspector.errors(queue=queue),
    "throughput": lambda inspector, queue: inspector.throughput(queue=queue),
    "window": lambda inspector, queue: inspector.window(60),
    "queues_of": lambda inspector, queue: inspector.queues_of("bad"),
    "tasks": _every_state,
    "servers": lambda inspector, queue: inspector.servers(),
    "leases": lambda inspector, queue: inspector.leases(queue),
    "scheduler_entries": lambda inspector, queue: inspector.scheduler_entries(),
    "scheduler_events": lambda inspector, queue: inspector.scheduler_events("entry"),
    "order_keys": lambda inspector, queue: inspector.order_keys(queue),
    "held_keys": lambda inspector, queue: inspector.held_keys(queue),
    "limits": lambda inspector, queue: inspector.limits(queue),
    "is_closed": lambda inspector, queue: inspector.is_closed(queue),
    "doctor.diagnose": lambda inspector, queue: inspector.doctor.diagnose(queue),
}
DASHBOARD: dict[str, Sequence[str]] = {
    "overview": ("",),
    "queue": ("queue={queue}",),
    "history": ("queue={queue}",),
    "tasks": [f"queue={{queue}}&state={state}&group={'g' * (state == 'aggregating')}&size=100" for state in STATES],
    "task": ("queue={queue}&id=bad",),
    "children": ("queue={queue}&id=bad&gather=pages",),
    "waiting": ("", "queue={queue}"),
    "throughput": ("", "queue={queue}"),
    "types": ("", "queue={queue}", "minutes=1440"),
    "errors": ("", "queue={queue}", "hours=1"),
    "find": ("id=bad",),
    "servers": ("",),
    "leases": ("queue={queue}", ""),
    "schedules": ("",),
    "schedule": ("id=entry",),
    "groups": ("queue={queue}",),
    "order-keys": ("queue={queue}",),
    "limits": ("queue={queue}",),
    "jobs": ("",),
}
CLI = (
    *("stats", "stats --types", "errors", "queue list", "queue inspect {queue}", "queue history {queue}"),
    *(f"task list -q {{queue}} -s {state}" for state in STATES if state != "aggregating"),
    *("task list -q {queue} -s aggregating -g g", "task show -q {queue} bad", "group list -q {queue}"),
    *("task leases -q {queue}", "task waiting -q {queue}", "queue limits {queue}", "queue order-keys {queue}"),
    *("server list", "server inspect id", "worker list", "cron list", "cron history entry", "doctor -q {queue}"),
    *("gateway nodes", "gateway sessions", "top --once"),
)


async def ask_inspector(app: App, queues: Sequence[str]) -> None:
    inspector = app.inspector()
    for queue in queues:
        for name, ask in INSPECTOR.items():
            try:
                await ask(inspector, queue)
            except VeredusError:
                pass
            except Exception as exc:
                raise AssertionError(f"inspector.{name} of queue {queue!r}") from exc


async def ask_dashboard(app: App, queues: Sequence[str]) -> None:
    dashboard = asgi(app, token=TOKEN)
    try:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(dashboard),
            base_url="http://dash.test",
            headers={"authorization": f"Bearer {TOKEN}"},
        ) as client:
            for queue in queues:
                for name, queries in DASHBOARD.items():
                    for query in queries:
                        answer = await client.get(f"/api/{name}?{query.format(queue=queue)}")
                        assert answer.json() is not None, name
                        assert answer.status_code != 500, f"{name}?{query} of queue {queue!r}: {answer.text}"
    finally:
        await dashboard.close()


def ask_commands(
    url: str, queues: Sequence[str], monkeypatch: pytest.MonkeyPatch, *, commands: Sequence[str] = CLI
) -> None:
    """In this process, without a loop of ours."""
    monkeypatch.setenv("VEREDUS_REDIS_URL", url)
    for queue in queues:
        for line in commands:
            for more in ((), ("--json",)) if line != "top --once" else ((),):
                run_command([part.format(queue=queue) for part in line.split()] + list(more))


def run_command(args: list[str]) -> str:
    """What it printed. Whatever is not an error of ours fails the test."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            main(args)
        except SystemExit as ending:
            code = ending.code
        except BaseException:
            raise AssertionError(f"veredus {' '.join(args)}: {traceback.format_exc()}") from None
    assert code != WRONG_USAGE, f"veredus {' '.join(args)} is no command"
    return out.buffer.getvalue().decode()
