"""Every row of the life cycle's table is a move that a script really makes, and no script makes another one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.inspector.support import Bench
from tests.support.moves import Move
from veredus.model.archive import ArchiveLimits
from veredus.model.lifecycle import ANY_VERB, TRANSITIONS, State
from veredus.model.settlement import Park
from veredus.store.inspect.checkups import Checkups
from veredus.store.inspect.inspect_part import containers
from veredus.store.inspect.moves import DELETE_ORIGINAL, RELEASE_COPY, STAGE_COPY, Field, Moves
from veredus.store.inspect.moves import Move as MoveOrder
from veredus.store.inspect.tasks import Tasks
from veredus.store.store import Store
from veredus.store.tasks.groups import GroupProbe, RetriedMember, UnreadableMember
from veredus.store.tasks.intake import NewTask
from veredus.store.tasks.runs import WAKE, JoinRow, WakeRow
from veredus.store.tasks.work import PARK, Work
from veredus.wire import keys

WAITING = ("pending", "scheduled", "retry", "aggregating")
AT_REST = (*WAITING, "archived", "completed")
FULL = ArchiveLimits(size=1)
"""An archive that deletes the task before when one more is archived."""
SET_ID = "9f2b7c1e-0d53-4a3e-8f51-3f1f6f0a2b11"


class Scenes:
    """One queue with task `a` in some state, and the parts of the store that move it, each call watched."""

    def __init__(self, b: Bench) -> None:
        self.b = b
        redis: Any = b.redis
        self.store = Store(redis, archive=FULL)
        self.tasks, self.moves, self.checkups = Tasks(redis), Moves(redis), Checkups(redis)
        self.tasks.limits = FULL

    async def begin(self, state: str, *, waits: bool = False) -> None:
        """`waits`: `a` has an order key, and another task's turn comes first."""
        await self.b.client.flushdb()
        await self.b.fill(state, "a")
        if waits:
            await self.b.client.hset(self.b.task("a"), "order_key", "k")
            await self.b.client.hset(self.b.task("first"), mapping={"msg": "m", "state": "pending", "order_key": "k"})
            await self.b.client.lpush(self.b.key("pending"), "first")
            await self.b.client.zadd(self.b.key("lane:k"), {"first": 1})

    async def old_in_archive(self, state: str) -> None:
        await self.b.client.flushdb()
        await self.b.fill("archived", "old")
        await self.b.client.zadd(self.b.key("archived"), {"old": 1})
        await self.b.fill(state, "a")

    async def message(self) -> bytes:
        found = await self.b.client.hget(self.b.task("a"), "msg")
        assert isinstance(found, bytes)
        return found

    async def script(self, script: Any, *args: Any, rows: Any = ()) -> Any:
        given = script.args((self.b.key(""), *args), *([rows] if rows else []))
        return await self.b.redis.run(script, containers("q"), given)

    async def enqueue(self, **options: Any) -> Any:
        return await self.store.intake.add_many("q", [NewTask("a", self.b.message("a"), **options)])

    # Producers and workers.

    async def producers(self) -> None:
        for options in ({}, {"due": "+60000"}, {"group": "g"}, {"order_key": "k"}):
            await self.b.client.flushdb()
            await self.enqueue(**options)
            for ended in ("archived", "completed"):
                await self.begin(ended)
                await self.enqueue(replace=True, **{name: options[name] for name in options if name != "order_key"})
        await self.b.client.flushdb()
        two = [NewTask(one, self.b.message(one), order_key="k") for one in ("first", "a")]
        await self.store.intake.add_many("q", two)

    async def forwarder(self) -> None:
        for state in ("scheduled", "retry"):
            for fields in ({}, {"due_group": "g"}, {"group": "g"}):
                await self.begin(state)
                if fields:
                    await self.b.client.hset(self.b.task("a"), mapping=fields)
                await self.b.client.zadd(self.b.key(state), {"a": 1})
                await self.b.client.delete(self.b.key("due"))
                await self.store.delays.forward(["q"])
            await self.begin(state)
            await self.b.client.hdel(self.b.task("a"), "msg")
            await self.b.client.zadd(self.b.key(state), {"a": 1})
            await self.store.delays.forward(["q"])
            await self.begin(state, waits=True)
            await self.b.client.zadd(self.b.key(state), {"a": 1})
            await self.b.client.delete(self.b.key("due"))
            await self.store.delays.forward(["q"])

    async def dequeues(self) -> None:
        await self.begin("pending")
        await self.b.dequeue(10)
        await self.begin("pending")
        await self.b.client.hset(self.b.task("a"), "expires_at", "1")
        await self.b.dequeue(10)
        await self.begin("pending", waits=True)
        await self.b.dequeue(10)

    async def settlements(self) -> None:
        for settle in (self.b.done, self.b.complete, self.b.retry, self.b.requeue, self.b.archive, self.b.extend):
            await self.begin("pending")
            await self.b.dequeue()
            await settle("a")
        await self.b.client.flushdb()
        await self.b.fill("archived", "old")
        await self.b.activate("a", owner="w:1000")
        await self.b.archive(("a", "w:1000"), max_size=2)
        await self.begin("completed")
        await self.b.expire(now=4_100_000_000_000)

    async def waits(self) -> None:
        for ends in (1, 0):  # one that is over, and one without an end
            await self.begin("pending")
            await self.b.dequeue()
            names = self.b.keys("active lease pending scheduled retry due waits")
            args = PARK.args((self.b.key(""), keys.delay_wakeup("q")), [Park("a", "w:1", "event", ends, "e:x")])
            await self.b.redis.run(PARK, names, args)
        await self.b.client.hset(self.b.task("a"), "run", "mark")
        rows = [WakeRow("a", "mark", "e:x", b"+1")]
        await self.b.redis.run(WAKE, self.b.keys("pending scheduled due waits"), WAKE.args((self.b.key(""),), rows))

    async def recoveries(self) -> None:
        await self.begin("pending")
        await self.b.dequeue()
        await self.b.recover(now=4_000_000_100_000)
        await self.begin("pending")
        await self.b.dequeue()
        await self.b.client.hdel(self.b.task("a"), "msg")
        await self.b.recover(now=4_000_000_100_000)

    async def order_keys(self) -> None:
        for how in ("release", "sweep"):
            await self.b.client.flushdb()
            two = [NewTask(one, self.b.message(one), order_key="k", order_hold=True) for one in ("first", "a")]
            await self.store.intake.add_many("q", two)
            await self.b.dequeue()
            await self.b.archive("first")
            if how == "release":
                await self.store.lanes.release("q", "k")
            else:
                await self.b.client.delete(self.b.task("first"), self.b.key("archived"))
                await self.store.lanes.advance_stale_lanes(["q"], 0)

    async def joins(self) -> None:
        """A durable task waits, what it waits for has come meanwhile, and what it waits for comes."""
        for verb in ("wake", "join", "come"):
            await self.begin("pending")
            await self.b.dequeue()
            await self.b.client.hset(self.b.task("a"), mapping={"run": "m", "g:all": "1 d 1 []"})
            if verb == "come":
                await self.b.client.hset(self.b.task("a"), "e:go", "+1")
            held = await self.b.client.hget(self.b.task("a"), "held")
            owner = held.decode().rpartition(":")[0]
            field = "o:all" if verb == "join" else "e:go"
            await Work(self.b.redis, "w", lease_ms=1000).settle("q", [Park("a", owner, "event", 0, field)])
            if verb == "wake":
                await self.store.runs.wake("q", [WakeRow("a", "m", "e:go", b"+1")])
            elif verb == "join":
                await self.store.runs.join("q", [JoinRow("a", "m", "all", 0, b"+")])

    async def cancels(self) -> None:
        for state in WAITING:
            for action in ("archive", "delete"):
                await self.begin(state)
                await self.store.cancels.cancel("q", "a", action, lambda message: message)
        await self.old_in_archive("pending")
        await self.store.cancels.cancel("q", "a", "archive", lambda message: message)
        await self.begin("pending")
        await self.b.dequeue()
        await self.store.cancels.cancel("q", "a", "archive", lambda message: message)

    async def groups(self) -> None:
        async def stage() -> None:
            await self.begin("aggregating")
            await self.store.groups.check([("q", [GroupProbe("g", SET_ID, 1, 0, 0)])], limit=1, set_ms=60_000)

        made = [("a", {}), ("b", {}), ("c", {"due": "+1000"}), ("d", {"group": "h"}), ("a", {"due": "+1000"})]
        for task_id, options in made:
            await stage()
            entry = NewTask(task_id, self.b.message(task_id), **options)  # type: ignore[arg-type]
            await self.store.groups.aggregate("q", "g", SET_ID, [("a", "")], [entry])
        await stage()
        await self.b.client.hset(self.b.task("a"), "expires_at", "1")
        await self.store.groups.read("q", "g", SET_ID)
        await stage()
        await self.store.groups.archive("q", "g", SET_ID, [UnreadableMember("a", "", b"new")])
        await stage()
        await self.store.groups.retry("q", "g", SET_ID, [RetriedMember("a", "", b"new", 1000)])
        await stage()
        await self.store.groups.give_back("q", "g", SET_ID)

    # The inspector.

    async def runs(self) -> None:
        for waits in (False, True):
            for state in AT_REST:
                await self.begin(state, waits=waits)
                await self.tasks.run("q", [("a", None)], front=state == "pending")
            for state in AT_REST[1:]:
                await self.begin(state, waits=waits)
                await self.tasks.run_all("q", state, "g", 10)
        for state in AT_REST:
            await self.begin(state)
            await self.tasks.reschedule("q", [("a", None)], "+60000")

    async def archives_and_deletes(self) -> None:
        for state in AT_REST:
            await self.begin(state)
            await self.tasks.delete("q", [("a", None)])
            await self.begin(state)
            await self.tasks.delete_all("q", state, "g", 10)
            await self.begin(state)
            await self.script(DELETE_ORIGINAL, "a", "", await self.message(), state)
            await self.begin(state)
            await self.checkups.quarantine("q", "a", await self.message(), b"stand-in", None)
        for state in WAITING:
            await self.begin(state)
            await self.tasks.archive("q", [("a", None)])
            await self.begin(state)
            await self.tasks.archive_all("q", state, "g", 10)
        for one_by_one in (True, False):
            await self.old_in_archive("pending")
            if one_by_one:
                await self.tasks.archive("q", [("a", None)])
            else:
                await self.tasks.archive_all("q", "pending", "", 10)

    async def other_queues(self) -> None:
        for state in AT_REST:
            await self.begin(state)
            message = await self.message()
            await self.moves.move(MoveOrder("a", "q", "r", message, message, "", ""))
        for state in AT_REST:
            fields = [Field("msg", b"m"), Field("moved_state", state.encode()), Field("group", b"g")]
            if state != "pending":
                fields.append(Field("moved_score", b"4000000000"))
            for keep in (1, 0):
                await self.b.client.flushdb()
                await self.script(STAGE_COPY, "a", "source", "", rows=fields)
                await self.script(RELEASE_COPY, keys.delay_wakeup("q"), "a", "source", keep, "", 0)


@pytest.fixture
def scenes(store: Store, redis_client: Any) -> Scenes:
    return Scenes(Bench(store.redis, redis_client))


def text(rows: set[tuple[str, Move]]) -> list[str]:
    return sorted(f"{verb}: {start or 'nothing'} -> {end or 'nothing'}" for verb, (start, end) in rows)


async def test_every_row_of_the_table_is_a_move_that_a_script_makes(scenes: Scenes) -> None:
    for play in (
        scenes.producers,
        scenes.forwarder,
        scenes.dequeues,
        scenes.settlements,
        scenes.waits,
        scenes.recoveries,
        scenes.joins,
        scenes.order_keys,
        scenes.cancels,
        scenes.groups,
        scenes.runs,
        scenes.archives_and_deletes,
        scenes.other_queues,
    ):
        await play()
    rows = {(verb, move) for verb, moves in TRANSITIONS.items() for move in moves}
    seen = {(verb, move) for verb, move in scenes.b.redis.moves if move not in ANY_VERB or (verb, move) in rows}
    assert text(rows - seen) == []
    assert text(seen - rows) == []


def test_a_move_changes_the_state() -> None:
    states: list[State | None] = [*State, None]
    for verb, moves in TRANSITIONS.items():
        assert moves, verb
        for start, end in moves:
            assert start in states
            assert end in states
            assert start is not end, verb
