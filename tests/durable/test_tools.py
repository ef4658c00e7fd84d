"""What tools do with durable tasks: run them again, from the start too; edit and move them; list what they wait for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.durable.test_waits import parked
from tests.integration.support import FAST, Look
from tests.support.servers import VALKEY_ONLY
from tests.support.waiting import until
from veredus import App, current
from veredus.errors import TaskFailed, WrongState
from veredus.inspector.search import Query

pytestmark = VALKEY_ONLY
SETTINGS: dict[str, Any] = {**FAST, "retry_delay": lambda retried, error, job: 0.01}


class Effects(list[str]):
    async def note(self, what: str) -> str:
        self.append(what)
        return what


@pytest.fixture
def effects() -> Effects:
    return Effects()


def declare_order(app: App, effects: Effects) -> Any:
    @app.task
    async def child(n: int) -> int:
        effects.append(f"child {n}")
        return n

    @app.task(name="order")
    async def order(n: int) -> str:
        await current().step(effects.note, f"charge {n}")
        await current().gather("parts", [child.call(n)])
        answer = await current().wait_for(f"approved:{n}")
        return f"{n}: {answer}"

    return order


async def until_it_waits_for_approval(look: Look, task_id: str) -> str:
    """Its run mark."""

    async def waits() -> bool:
        fields = await look.fields(task_id)
        return b" e:approved" in fields.get("waiting", b"") and fields["state"] == b"scheduled"

    await until(waits)
    return (await look.fields(task_id))["run"].decode()


async def test_ruling_11_from_the_start_nothing_is_left_of_the_run_before(
    app: App, effects: Effects, look: Look
) -> None:
    order = declare_order(app, effects)
    async with app.worker(**SETTINGS), app.inspector() as inspector:
        handle = await order.enqueue(7)
        mark = await until_it_waits_for_approval(look, handle.id)
        await inspector.run("default", handle.id)
        assert await until_it_waits_for_approval(look, handle.id) == mark, "run as it is, it only looks"
        assert effects == ["charge 7", "child 7"]
        await inspector.run("default", handle.id, from_start=True)

        async def is_new() -> bool:
            return (await look.fields(handle.id)).get("run", mark.encode()) != mark.encode()

        await until(is_new)
        await until_it_waits_for_approval(look, handle.id)
        assert effects == ["charge 7", "child 7"] * 2
        assert await look.client.keys(f"*kids*{mark}*") == []
        await app.emit("approved:7", "yes")
        assert await handle.result(timeout=20) == "7: yes"


async def test_archived_runs_begin_from_the_start_in_bulk(app: App, effects: Effects) -> None:
    broken = [True]

    @app.task(max_retry=0)
    async def order(n: int) -> str:
        await current().step(effects.note, str(n))
        if broken:
            raise ValueError("no")
        return "done"

    async with app.worker(**SETTINGS), app.inspector() as inspector:
        handles = [await order.enqueue(n) for n in range(3)]
        for one in handles:
            with pytest.raises(TaskFailed):
                await one.result(timeout=20)
        broken.clear()
        assert (await inspector.run_all("default", "archived", from_start=True)).done == 3
        assert [await one.result(timeout=20) for one in handles] == ["done"] * 3
    assert sorted(effects) == sorted(["0", "1", "2"] * 2)


async def test_ruling_19_what_waits_or_has_children_is_moved_and_edited_only_from_the_start(
    app: App, effects: Effects, look: Look
) -> None:
    order = declare_order(app, effects)
    async with app.worker(["default", "other"], **SETTINGS), app.inspector() as inspector:
        edited, moved = await order.enqueue(1), await order.enqueue(2)
        for one in (edited, moved):
            await until_it_waits_for_approval(look, one.id)
        with pytest.raises(WrongState, match="cannot edit it: it is a durable task that waits for something or has"):
            await inspector.edit_payload("default", edited.id, {"n": 3})
        with pytest.raises(WrongState, match="cannot move it: it is a durable task"):
            await inspector.move("default", moved.id, "other")
        for n in (2, 3):
            await app.emit(f"approved:{n}", "yes")
        assert await moved.result(timeout=20) == "2: yes"
        moved = await order.enqueue(4)
        await until_it_waits_for_approval(look, moved.id)
        await inspector.edit_payload("default", edited.id, {"n": 3}, from_start=True)
        assert await edited.result(timeout=20) == "3: yes"
        await inspector.move("default", moved.id, "other", from_start=True)
        await until_it_waits_for_approval(look.of("other"), moved.id)
        assert await look.scores("waits") == {}
        await app.emit("approved:4", "yes")
        assert await app.handle(moved.id, queue="other").result(timeout=20) == "4: yes"
    assert effects.count("charge 4") == 2


async def test_what_waits_is_listed_by_reason_and_run_in_bulk(app: App, look: Look) -> None:
    began: list[str] = []

    @app.task
    async def waits(n: int) -> Any:
        began.append(f"event {n}")
        return await current().wait_for(f"approved:{n}", timeout=3600)

    @app.task
    async def sleeps() -> None:
        began.append("sleep")
        await current().sleep("nap", 3600)

    async with app.worker(**SETTINGS), app.inspector() as inspector:
        for handle in [*[await waits.enqueue(n) for n in range(3)], await sleeps.enqueue(), await sleeps.enqueue()]:
            await parked(look, handle.id)
        found = {one.reason: one.count for one in await inspector.waiting("default")}
        assert found == {"event approved:*": 3, "sleep nap": 2}
        oldest = (await inspector.waiting("default"))[0]
        assert oldest.as_dict()["task_id"] == oldest.task_id
        for pattern, count in (("event approved:*", 3), ("sleep", 2), ("event approved:1", 1), ("children", 0)):
            assert len([one async for one in inspector.search("default", "scheduled", waiting=pattern)]) == count
        bulk = await inspector.run_all("default", "scheduled", where=Query(waiting="event approved:*"))
        assert bulk.done == 3

        async def all_wait_again() -> bool:
            return len(await look.scores("scheduled")) == 5 and await look.pending() == []

        await until(all_wait_again)
        assert len(began) == 5, "they have looked, without their handlers"
