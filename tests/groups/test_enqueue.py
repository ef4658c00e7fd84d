"""The option `group`: through every way of sending, alone and with the other options."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.support import Look
from tests.support.servers import VALKEY_ONLY
from veredus import App, ConfigError, TaskIdConflict
from veredus.wire import keys


async def group(look: Look, name: str) -> set[str]:
    return set(await look.scores(f"g:{name}"))


async def test_a_grouped_task_waits_in_its_group(app: App, look: Look) -> None:
    @app.task(name="item", group="digest:42")
    def item(n: int) -> None: ...

    one = await item.enqueue(1)
    two = await item.using(group="digest:43").enqueue(2)
    three = await app.enqueue("else", {"n": 3}, group="digest:42")
    assert [one.state, two.state, three.state] == ["aggregating"] * 3
    assert await group(look, "digest:42") == {one.id, three.id}
    assert await group(look, "digest:43") == {two.id}
    fields = await look.fields(one.id)
    assert set(fields) == {"msg", "state", "group", "group_seq"}
    assert (fields["state"], fields["group"]) == (b"aggregating", b"digest:42")
    assert (await look.message(one.id)).group_key == "digest:42"
    assert await look.client.smembers(keys.groups("default")) == {b"digest:42", b"digest:43"}


async def test_none_takes_the_group_away_again(app: App, look: Look) -> None:
    @app.task(name="item", group="g")
    def item() -> None: ...

    assert (await item.using(group=None).enqueue()).state == "pending"


@pytest.mark.parametrize("bad", ["", "  ", 7, b"g", "\ud800"])
async def test_a_blank_or_strange_group_is_refused(app: App, look: Look, bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"^group: got "):
        await app.enqueue("t", group=bad)
    assert await look.client.dbsize() == 0


async def test_many_of_all_kinds_in_one_call(app: App, look: Look) -> None:
    @app.task(name="item")
    def item(n: int) -> None: ...

    def call(n: int) -> Any:
        kinds: list[dict[str, Any]] = [{}, {"group": f"g{n % 7}"}, {"delay": 60}, {"delay": 60, "group": "late"}]
        return item.using(**kinds[n % 4]).call(n)

    handles = await app.enqueue_many(call(n) for n in range(1200))
    states = ["pending", "aggregating", "scheduled", "scheduled"]
    assert [handle.state for handle in handles] == [states[n % 4] for n in range(1200)]
    for handle in handles[::97]:
        assert await look.state(handle.id) == handle.state
    sizes = [len(await group(look, f"g{n}")) for n in range(7)]
    assert sum(sizes) == 300
    assert await group(look, "late") == set()


@VALKEY_ONLY
async def test_concurrent_senders_share_round_trips_and_keep_their_order(app: App, look: Look) -> None:
    @app.task(name="item", group="g")
    def item(n: int) -> None: ...

    await item.enqueue(-1)
    handles = await asyncio.gather(*[item.enqueue(n) for n in range(300)])
    calls = (await look.client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert calls < 30
    sequence = [(await look.fields(handle.id))["group_seq"] for handle in handles]
    assert sequence == sorted(sequence)


async def test_a_unique_grouped_task_is_there_once_and_says_its_lock(app: App, look: Look) -> None:
    first = await app.enqueue("t", {"n": 1}, group="g", unique_for=60)
    again = await app.enqueue("t", {"n": 1}, group="h", unique_for=60)
    assert (first.created, again.created) == (True, False)
    lock = keys.unique("default", "t", b'{"n":1}')
    assert (await look.fields(first.id))["unique_key"] == lock.encode()
    assert await look.client.get(lock) == first.id.encode()
    assert await group(look, "h") == set()


async def test_a_taken_id_is_a_conflict_and_leaves_no_lock(app: App, look: Look) -> None:
    await app.enqueue("t", 1, task_id="a", group="g")
    with pytest.raises(TaskIdConflict):
        await app.enqueue("t", 2, task_id="a", group="g", unique_for=60)
    assert await look.client.exists(keys.unique("default", "t", b"2")) == 0


async def test_from_synchronous_code(url: str, look: Look) -> None:
    app = App(url)
    handle = await asyncio.to_thread(app.enqueue_sync, "t", 1, group="g")
    app.close_sync()
    assert handle.state == "aggregating"
    assert await group(look, "g") == {handle.id}


async def test_a_delayed_grouped_task_goes_to_its_group_when_due(app: App, look: Look) -> None:
    """Asynq forgets the group and runs it alone."""
    handle = await app.enqueue("t", 1, group="g", delay=0.2)
    assert handle.state == "scheduled"
    assert (await look.fields(handle.id))["due_group"] == b"g", "where no Go forwarder looks"
    async with app.worker(concurrency=1):
        await look.ends(handle.id, "aggregating")
    assert await group(look, "g") == {handle.id}
    assert await look.client.smembers(keys.groups("default")) == {b"g"}
