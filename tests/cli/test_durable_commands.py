"""Commands for durable tasks: found by what they wait for, begun again from the start, cancelled with children."""

from __future__ import annotations

import asyncio

import pytest

from tests.cli.support import Command
from tests.support.waiting import until
from veredus import App, current
from veredus.inspector.inspector import Inspector


@pytest.fixture
def orders(veredus: Command) -> None:
    """Tasks o-1 to o-4 have kept a step and wait for an event each; g-1 and g-2 wait for a child that waits as well."""
    app = App(veredus.url)

    async def charge() -> str:
        return "receipt"

    @app.task
    async def order(n: int) -> None:
        await current().step(charge)
        await current().wait_for(f"approved:{n}")

    @app.task
    async def child(n: int) -> None:
        await current().wait_for(f"packed:{n}")

    @app.task
    async def gathering(n: int) -> None:
        await current().gather("parts", [child.call(n)])

    async def until_all_wait() -> None:
        async with app, app.worker(), app.inspector() as inspector:
            for n in (1, 2, 3, 4):
                await order.using(task_id=f"o-{n}").enqueue(n)
            for n in (1, 2):
                await gathering.using(task_id=f"g-{n}").enqueue(n)

            async def wait() -> bool:
                found = [task.waiting_for async for task in inspector.search("default", "scheduled")]
                return len(found) == 8 and all(found)

            await until(wait)

    asyncio.run(until_all_wait())


def _ids(veredus: Command, state: str, queue: str = "default") -> set[str]:
    async def ask(inspector: Inspector) -> set[str]:
        return {task.id async for task in inspector.search(queue, state)}

    return veredus.look(ask)


def _steps(veredus: Command, task_id: str, queue: str = "default") -> int:
    async def ask(inspector: Inspector) -> int:
        run = await inspector.durable_run(queue, task_id)
        return len(run.steps) if run is not None else 0

    return veredus.look(ask)


@pytest.mark.usefixtures("orders")
def test_tasks_are_found_by_what_they_wait_for(veredus: Command) -> None:
    listed = veredus.do("task list -q default -s scheduled --waiting 'event approved:*' --json").json
    assert {one["id"] for one in listed} == {"o-1", "o-2", "o-3", "o-4"}
    veredus.do("task run -q default -s scheduled --all --waiting 'event approved:1' -y")
    assert _ids(veredus, "pending") == {"o-1"}
    veredus.do("task archive -q default -s scheduled --all --waiting 'event approved:2' -y")
    assert _ids(veredus, "archived") == {"o-2"}
    veredus.do("task delete -q default -s scheduled --all --waiting 'event approved:3' -y")
    assert {one for one in _ids(veredus, "scheduled") if ":" not in one} == {"o-4", "g-1", "g-2"}
    cancelled = veredus.do("task cancel -q default --all --waiting 'event approved:4' --then delete -y")
    assert cancelled.out == "cancel: 1 of 5 waiting tasks\n"
    assert {one for one in _ids(veredus, "scheduled") if ":" not in one} == {"g-1", "g-2"}
    assert veredus.do("task cancel -q default --all -y").out == "cancel: 0 of 0 running tasks\n"


@pytest.mark.usefixtures("orders")
def test_from_the_start_a_task_forgets_its_steps(veredus: Command) -> None:
    assert [_steps(veredus, f"o-{n}") for n in (1, 2, 3, 4)] == [2, 2, 2, 2], "a step and a wait"
    assert veredus.do("task run -q default -i o-1 --from-start").code == 0
    assert veredus.do("task edit -q default -i o-2 -l [2] --from-start").code == 0
    assert veredus.do("task move -q default -i o-3 --to other --from-start").code == 0
    assert veredus.do("task run -q default -i o-4").code == 0
    assert [_steps(veredus, f"o-{n}") for n in (1, 2, 4)] == [0, 0, 2]
    assert _steps(veredus, "o-3", "other") == 0


def _of_orders(ids: set[str]) -> list[str]:
    """A child's id begins with that of its parent."""
    return sorted(f"{one.partition(':')[0]}'s child" if ":" in one else one for one in ids if one.startswith("g-"))


@pytest.mark.usefixtures("orders")
def test_a_cancel_takes_the_children_along_or_leaves_them(veredus: Command) -> None:
    assert veredus.do("task cancel g-1 --children keep --then delete").code == 0
    assert _of_orders(_ids(veredus, "scheduled")) == ["g-1's child", "g-2", "g-2's child"]
    assert veredus.do("task cancel g-2 --children cancel --then delete").code == 0
    assert _of_orders(_ids(veredus, "scheduled")) == ["g-1's child"]
