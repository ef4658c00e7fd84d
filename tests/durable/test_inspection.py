"""What people and tools see of a durable task; and that a worker that is killed loses nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, current
from veredus.errors import StepFailed, TaskNotFound
from veredus.inspector.redaction import Redaction

pytestmark = VALKEY_ONLY
SETTINGS: dict[str, Any] = {**FAST, "retry_delay": lambda retried, error, job: 0.01}


async def test_ruling_20_steps_children_and_what_a_task_waits_for_are_shown(app: App, look: Look) -> None:
    @app.task
    async def child(n: int) -> int:
        return n

    async def charge() -> str:
        return "receipt"

    async def broken() -> None:
        raise ValueError("no paper")

    @app.task
    async def order() -> None:
        job = current()
        await job.step(charge)
        try:
            await job.step(broken)
        except StepFailed:
            pass
        await job.gather("pages", [child.call(n) for n in range(3)])
        await job.wait_for("approved:7")

    async with app.worker(**SETTINGS), app.inspector() as inspector:
        assert await inspector.durable_run("default", "none") is None
        handle = await order.enqueue()

        async def waits_for_approval() -> bool:
            return (await look.fields(handle.id)).get("waiting", b"").endswith(b" e:approved:7")

        await until(waits_for_approval)
        run = await inspector.durable_run("default", handle.id)
        assert run is not None
        shown = {(one.kind, one.name): (one.outcome, one.detail) for one in run.steps}
        assert [one.name for one in run.steps] == ["charge", "broken", "pages", "approved:7"], "in the order of time"
        assert [one.attempt for one in run.steps] == [1, 1, 0, 0]
        assert all(0 <= (one.seconds or 0) < 10 and one.began_ms > 1.7e12 for one in run.steps)
        assert [one.seconds is None for one in run.steps] == [False, False, False, True]
        pages = run.steps[2]
        assert (pages.size, [(child.outcome, child.detail) for child in pages.children]) == (
            3,
            [("done", "0"), ("done", "1"), ("done", "2")],
        )
        assert await inspector.children("default", handle.id, "pages", page=2, size=2) == [pages.children[2]]
        with pytest.raises(TaskNotFound, match="with children 'no'"):
            await inspector.children("default", handle.id, "no")
        assert await handle.durable_run() == run
        assert shown == {
            ("step", "charge"): ("done", '"receipt"'),
            ("step", "broken"): ("failed", "ValueError: no paper"),
            ("children", "pages"): ("done", "3 of 3 have ended"),
            ("event", "approved:7"): ("waiting", ""),
        }
        assert run.waiting == "event approved:7"
        assert run.as_dict()["mark"] == run.mark
        task = await inspector.task("default", handle.id)
        listed = await inspector.tasks("default", "scheduled")
        assert listed[0].waiting_for == "event approved:7"
        (reason,) = await inspector.waits("default", handle.id)
        assert (reason.reason, reason.name) == ("event", "approved:7")
        assert (listed[0].next_process_at, task.next_process_at) == (None, None)
        assert await inspector.doctor.diagnose(server=False) == []
        private = Redaction(lambda value, what: "")
        hidden = private.run(run)
        assert hidden is not None
        assert {one.detail for one in hidden.steps} == {""}
        assert {one.detail for one in hidden.steps[2].children} == {""}
        await handle.cancel(then="delete")
